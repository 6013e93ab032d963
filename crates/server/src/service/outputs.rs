//! Where outputs of submissions go, as doors say it and as the machine does.

use windlass_api::branches::{ChunkFailureRule, OutputInfo, VerifyInfo};
use windlass_api::problem::{Problem, ProblemCode};
use windlass_core::branches::outputs::{OnChunkFailure, OutputMode, OutputRule};
use windlass_core::branches::verify::{Rule, Verify};

pub(super) fn output_rule_of(info: OutputInfo) -> Result<OutputRule, Problem> {
    let mode = match info.mode.as_str() {
        "append" => OutputMode::Append,
        "exact" => OutputMode::Exact,
        mode => match mode.strip_prefix("replace:") {
            Some(prefix) => OutputMode::Replace(prefix.to_owned()),
            None => {
                let detail =
                    format!("{mode:?} is no mode of an output; use `append`, `replace:PREFIX` or `exact`");
                return Err(Problem::new(ProblemCode::InvalidRequest, detail));
            }
        },
    };
    let on_chunk_failure = match info.on_chunk_failure {
        ChunkFailureRule::Abort => OnChunkFailure::Abort,
        ChunkFailureRule::CommitWithout => OnChunkFailure::CommitWithout,
    };
    Ok(OutputRule { branch: info.branch, mode, on_chunk_failure, verify: verify_of(info.verify)? })
}

pub(super) fn output_info_of(rule: OutputRule) -> OutputInfo {
    OutputInfo {
        branch: rule.branch,
        mode: match rule.mode {
            OutputMode::Append => "append".into(),
            OutputMode::Replace(prefix) => format!("replace:{prefix}"),
            OutputMode::Exact => "exact".into(),
        },
        on_chunk_failure: match rule.on_chunk_failure {
            OnChunkFailure::Abort => ChunkFailureRule::Abort,
            OnChunkFailure::CommitWithout => ChunkFailureRule::CommitWithout,
        },
        verify: VerifyInfo {
            rules: rule.verify.rules.iter().map(ToString::to_string).collect(),
            checks: rule.verify.checks,
        },
    }
}

/// What must hold before a commit becomes visible.
pub(super) fn verify_of(info: VerifyInfo) -> Result<Verify, Problem> {
    let rule = |text: &String| {
        text.parse::<Rule>().map_err(|error| Problem::new(ProblemCode::InvalidRequest, error.to_string()))
    };
    Ok(Verify { rules: info.rules.iter().map(rule).collect::<Result<_, _>>()?, checks: info.checks })
}
