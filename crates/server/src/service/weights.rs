//! Weights: how much of the work each value of a field gets by `Fair`, for every strategy that does not say otherwise.

use super::Service;
use super::batch::unexpected;
use windlass_api::problem::{Problem, ProblemCode};
use windlass_api::weights::{WeighRequest, WeightsInfo, WeightsList};
use windlass_core::batch::weights::Weigh;
use windlass_core::entry::{Command, Outcome};

impl Service {
    /// The weights of every field that has some.
    pub async fn weights(&self) -> Result<WeightsList, Problem> {
        self.freshen(None).await?;
        let info = |(field, weights)| WeightsInfo { field, weights };
        Ok(WeightsList { fields: self.order().read(|machine| machine.weights().map(info).collect()) })
    }

    /// The weights of a field's values.
    pub async fn weights_of(&self, field: String) -> Result<WeightsInfo, Problem> {
        self.freshen(None).await?;
        let weights = self.order().read(|machine| machine.weights_of(&field));
        Ok(WeightsInfo { field, weights })
    }

    /// Sets weights of a field's values; they count from the next hand-out on.
    pub async fn weigh(&self, field: String, request: WeighRequest) -> Result<WeightsInfo, Problem> {
        let weigh = Weigh { field: field.clone(), weights: request.weights };
        if let Some(problem) = weigh.problem() {
            return Err(Problem::new(ProblemCode::InvalidRequest, problem));
        }
        match self.propose(Command::Weigh(weigh)).await? {
            Outcome::Noted => self.weights_of(field).await,
            other => Err(unexpected(&other)),
        }
    }
}
