//! Explain and overview: what a strategy would give and why, why a submission waits, and numbers that agree with what was
//! done.

use serde_json::{Value, json};
use windlass_client::{Chunk, Client, Consumer, Failure, Output, Strategy};
use windlass_tests::here::{Here, attempt_of, attempt_with};

async fn explain(server: &Here, strategy: &str) -> Value {
    let answer = server.post("/v1/explain", json!({"strategy": strategy})).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json
}

async fn explain_one(server: &Here, strategy: &str, id: &str) -> Value {
    let answer = server.post("/v1/explain", json!({"strategy": strategy, "submission": id})).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json["submission"].clone()
}

async fn reserve(server: &Here, max: usize, strategy: &str) -> Vec<Value> {
    let answer = server.post("/v1/reserve", json!({"max": max, "strategy": strategy})).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json["reservations"].as_array().expect("a list").clone()
}

async fn overview(server: &Here, query: &str) -> Value {
    let answer = server.get(&format!("/v1/overview{query}")).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json
}

/// Block, standing and sentence, one for each block, from the outside in.
fn told(part: &Value) -> Vec<String> {
    let own = format!("{} [{}] {}", text(&part["text"]), text(&part["standing"]), text(&part["says"]));
    let inner = part["inner"].as_array().map_or(Vec::new(), |inner| inner.iter().flat_map(told).collect());
    std::iter::once(own).chain(inner).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("a text, not {value}"))
}

async fn submit(server: &Here, chunks: u64, metadata: Value) -> String {
    server.submit(json!({"chunks": chunks, "metadata": metadata})).await
}

#[tokio::test]
async fn the_chunk_that_is_explained_is_the_one_that_comes_whatever_the_block() {
    let server = Here::start(|_| {}).await;
    for number in 0..12 {
        let metadata =
            json!({"company_id": number % 3, "mode": if number % 4 == 0 { "preview" } else { "full" }});
        submit(&server, 5, metadata).await;
    }
    for strategy in [
        "Random",
        "OldestFirst",
        "NewestFirst",
        "CustomPriority",
        "SelectOnly(mode=preview)",
        "MaxSimultaneous(company_id, 20, NewestFirst)",
        "PreferDistinct(company_id, 1, OldestFirst)",
        "OrElse(SelectOnly(mode=none), Fair(company_id))",
        "Fair(company_id, weights(1=3), PreferDistinct(mode, 1))",
    ] {
        for _ in 0..4 {
            let explained = explain(&server, strategy).await;
            assert_eq!(explain(&server, strategy).await, explained, "asking changes nothing: {strategy}");
            assert_eq!(
                explained["strategy"].as_str().unwrap().parse::<Strategy>(),
                Ok(strategy.parse().unwrap())
            );
            let reserved = reserve(&server, 1, strategy).await.remove(0);
            let next = json!({"submission": reserved["submission"], "chunk": reserved["chunk"]});
            assert_eq!(explained["next"], next, "{strategy}: {}", explained["why"]);
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn an_explanation_mirrors_the_strategy_block_by_block() {
    let server = Here::start(|_| {}).await;
    submit(&server, 9, json!({"company_id": 7, "mode": "full"})).await;
    let other = submit(&server, 9, json!({"company_id": 8, "mode": "full"})).await;
    let strategy = "OrElse(SelectOnly(mode=preview), MaxSimultaneous(company_id, 2, Fair(company_id)))";
    assert_eq!(reserve(&server, 3, strategy).await.len(), 3);
    let explained = explain(&server, strategy).await;
    assert_eq!(
        explained["why"],
        format!(
            "{other} is the only ready submission of company_id=8, whose turn it is; 1 more waits behind a limit; \
             what comes before it in the strategy gives nothing"
        )
    );
    assert_eq!(
        told(&explained["part"]),
        [
            "OrElse [gives] the first gives nothing, so the fallback is asked, and gives",
            "SelectOnly(mode=preview) [empty] none of 2 ready submissions has mode=preview",
            "Random [empty] no ready submission gets here",
            "MaxSimultaneous(company_id, 2) [gives] 1 value of company_id has its 2 chunks in work; 1 ready \
             submission waits behind it",
            "Fair(company_id) [gives] it is the turn of company_id=8",
            "OldestFirst [gives] the only submission of company_id=8",
        ]
    );
    let limit = &explained["part"]["inner"][1]["limit"];
    let saturated = json!([{"field": "company_id", "value": 7, "reserved": 2, "max": 2, "submissions": 1}]);
    assert_eq!((&limit["saturated"], &limit["more"], &limit["cut"]), (&saturated, &json!(0), &json!(false)));
    let turns = &explained["part"]["inner"][1]["inner"][0]["turns"];
    assert_eq!(turns["next"], json!([{"value": 8, "weight": 1, "ahead": 0.0, "submissions": 1}]));
    server.stop().await;
}

#[tokio::test]
async fn a_submission_in_each_state_gets_a_clear_answer() {
    let server = Here::start(|_| {}).await;
    let strategy = "SelectOnly(mode=full, MaxSimultaneous(company_id, 1, OldestFirst))";
    let verdict = async |id: &str| {
        let it = explain_one(&server, strategy, id).await;
        (text(&it["verdict"]).to_owned(), text(&it["says"]).to_owned())
    };
    let said = |verdict: &str, says: &str| (verdict.to_owned(), says.to_owned());
    let first = submit(&server, 2, json!({"mode": "full", "company_id": 1})).await;
    let second = submit(&server, 2, json!({"mode": "full", "company_id": 2})).await;
    let preview = submit(&server, 2, json!({"mode": "preview"})).await;
    assert_eq!(verdict(&first).await, said("next", "it is next"));
    assert_eq!(verdict(&second).await, said("waits", "1 submission is ahead of it"));
    let wants = "SelectOnly wants mode=full, and it has mode=preview";
    assert_eq!(verdict(&preview).await, said("not_matched", wants));

    let taken = reserve(&server, 1, strategy).await.remove(0);
    let limited = "company_id=1 has 1 of at most 1 chunk in work";
    assert_eq!(verdict(&first).await, said("limited", limited));

    let done = json!({"chunks": [attempt_of(&taken)]});
    server.post("/v1/complete", done).await;
    let taken = reserve(&server, 1, strategy).await.remove(0);
    let nothing = "none of its chunks is ready: 1 chunk is in work";
    assert_eq!(verdict(&first).await, said("nothing_ready", nothing));
    let places = explain_one(&server, strategy, &first).await["chunks"].clone();
    let expected = json!({"total": 2, "done": 1, "failed": 0, "ready": 0, "reserved": 1, "delayed": 0});
    assert_eq!(places, expected);

    let failed = json!({"chunks": [attempt_with(&taken, "reason", json!("no disk"))]});
    server.post("/v1/fail", failed).await;
    let delayed = explain_one(&server, strategy, &first).await;
    assert_eq!(delayed["says"], "none of its chunks is ready: 1 chunk waits for its retry after a failure");
    assert!(delayed["retry_at"].is_string(), "{delayed}");

    server.post(&format!("/v1/submissions/{second}/pause"), json!({})).await;
    let paused = "it is paused, so nothing of it goes out; 2 chunks would be ready if it were resumed";
    assert_eq!(verdict(&second).await, said("paused", paused));
    server.post(&format!("/v1/submissions/{second}/cancel"), json!({})).await;
    let over = explain_one(&server, strategy, &second).await;
    assert_eq!((&over["verdict"], &over["state"]), (&json!("over"), &json!("cancelled")));
    assert!(text(&over["says"]).starts_with("it is over: cancelled at 2"), "{over}");
    server.stop().await;
}

#[tokio::test]
async fn what_cannot_be_explained_is_refused_with_what_to_do() {
    let server = Here::start(|_| {}).await;
    let unknown = server.post("/v1/explain", json!({"submission": "42"})).await;
    assert_eq!((unknown.status, &unknown.json["code"]), (404, &json!("submission_unknown")));
    let misspelt = server.post("/v1/explain", json!({"strategy": "Fairs(company_id)"})).await;
    assert_eq!((misspelt.status, &misspelt.json["code"]), (400, &json!("malformed_request")));
    assert!(misspelt.text.contains("did you mean Fair?"), "{}", misspelt.text);
    let lane = server.post("/v1/explain", json!({"strategy": {"Lane": {"name": "x"}}})).await;
    assert_eq!((lane.status, &lane.json["code"]), (422, &json!("strategy_invalid")));
    let doubling = (0..10).fold("Random".to_owned(), |inner, _| format!("PreferDistinct(a, 1, {inner})"));
    let too_much = server.post("/v1/explain", json!({"strategy": doubling})).await;
    assert_eq!((too_much.status, &too_much.json["code"]), (422, &json!("strategy_invalid")));
    for query in ["?field=no%20name", "?limit=0", "?limit=100000"] {
        let refused = server.get(&format!("/v1/overview{query}")).await;
        assert_eq!((refused.status, &refused.json["code"]), (422, &json!("invalid_request")), "{query}");
    }
    let nothing = explain(&server, "Random").await;
    assert_eq!((&nothing["why"], nothing.get("next")), (&json!("the queue is empty"), None));
    server.stop().await;
}

#[tokio::test]
async fn a_strategy_that_nobody_has_used_is_explained_once_its_view_is_built() {
    let server = Here::start(|_| {}).await;
    // More submissions than a view takes in at once.
    let count = 9_000;
    let client = &Client::new(&server.url("")).unwrap();
    let submits = (0..count).map(|number| async move {
        let metadata = [("company_id".to_owned(), windlass_client::MetaValue::Integer(number % 100))].into();
        let request = windlass_client::SubmitRequest { chunks: Some(1), metadata, ..Default::default() };
        client.submit(&request).await.unwrap()
    });
    use futures_util::StreamExt;
    let ids: Vec<_> = futures_util::stream::iter(submits).buffer_unordered(256).collect().await;
    let last = ids.iter().max().unwrap().to_string();
    let explained = explain_one(&server, "MaxSimultaneous(company_id, 5, OldestFirst)", &last).await;
    assert_eq!(explained["ways"][0]["rank"]["ahead"], json!(count - 1), "{explained}");
    let taken = explain(&server, "Fair(company_id)").await;
    assert_eq!(taken["part"]["turns"]["values"], json!(100));
    server.stop().await;
}

#[tokio::test]
async fn the_overviews_numbers_agree_with_what_was_done() {
    let server = Here::start(|_| {}).await;
    let empty = overview(&server, "").await;
    assert_eq!(empty["fields"], json!([]));
    assert_eq!(empty["chunks"], json!({"ready": 0, "reserved": 0, "delayed": 0, "paused": 0}));

    let one = submit(&server, 10, json!({"company_id": 1, "mode": "full"})).await;
    submit(&server, 20, json!({"company_id": 2})).await;
    let held = submit(&server, 5, json!({"company_id": 3})).await;
    server.post(&format!("/v1/submissions/{held}/pause"), json!({})).await;
    let strategy = "MaxSimultaneous(company_id, 2, Fair(company_id, weights(2=3)))";
    let taken = reserve(&server, 9, strategy).await;
    assert_eq!(taken.len(), 4);
    let of_one: Vec<&Value> = taken.iter().filter(|it| it["submission"] == json!(one)).collect();
    server.post("/v1/complete", json!({"chunks": [attempt_of(of_one[0])]})).await;
    server.post("/v1/fail", json!({"chunks": [attempt_with(of_one[1], "reason", json!("no"))]})).await;

    let seen = overview(&server, "?field=company_id&limit=9").await;
    assert_eq!(seen["submissions_running"], json!(3));
    assert_eq!(seen["chunks"], json!({"ready": 26, "reserved": 2, "delayed": 1, "paused": 5}));
    let totals = json!({"submitted": 3, "submitted_chunks": 35, "ended": 0, "handed_out": 4, "completed": 1, "failed": 1});
    assert_eq!(seen["totals"], totals);
    let fields = json!([
        {"name": "company_id", "values": 3, "in_use": true}, {"name": "mode", "values": 1, "in_use": false},
    ]);
    assert_eq!(seen["fields"], fields);
    assert_eq!(
        seen["field"],
        json!({
            "name": "company_id", "fair": true, "more": 0, "cut": false, "handed_out": 4,
            "values": [
                {"value": 2, "submissions": 1, "ready": 18, "reserved": 2, "handed_out": 2, "weight": 3, "fair_share": 0.75},
                {"value": 1, "submissions": 1, "ready": 8, "reserved": 0, "handed_out": 2, "weight": 1, "fair_share": 0.25},
            ],
        })
    );
    assert_eq!(
        seen["limits"],
        json!({"more": 0, "cut": false, "items": [
            {"field": "company_id", "value": 2, "reserved": 2, "max": 2, "hard": true, "submissions": 1},
        ]})
    );
    let used = json!({"views": 1, "more": 0, "items": [{"strategy": strategy, "waiting": 0, "views": 1, "building": false}]});
    assert_eq!(seen["strategies"], used);
    assert_eq!(seen["consumers"]["reserved_over_http"], json!(2));
    let first = overview(&server, "?field=company_id&limit=1").await;
    assert_eq!((first["field"]["values"].as_array().unwrap().len(), &first["field"]["more"]), (1, &json!(1)));
    assert_eq!(overview(&server, "?field=nope").await["field"]["values"], json!([]));
    assert_eq!(overview(&server, "").await.get("field"), None);
    server.stop().await;
}

#[tokio::test]
async fn consumers_are_shown_by_name_with_what_they_hold_and_what_they_wait_for() {
    let server = Here::start(|_| {}).await;
    submit(&server, 3, json!({"company_id": 1})).await;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let consumer = |name: &str, strategy: &str, mut stopped: tokio::sync::watch::Receiver<bool>| {
        let client = Client::new(&server.url("")).unwrap();
        let until = stopped.clone();
        let work = move |_: Chunk| {
            let mut until = until.clone();
            async move {
                drop(until.wait_for(|is_over| *is_over).await);
                Ok::<Output, Failure>(Output::Nothing)
            }
        };
        let builder = Consumer::builder(client).name(name).strategy(strategy.parse().unwrap()).concurrency(1);
        tokio::spawn(
            builder.prefetch(1).run(work, async move { drop(stopped.wait_for(|is_over| *is_over).await) }),
        )
    };
    let strategy = "MaxSimultaneous(company_id, 2)";
    let busy = consumer("busy", strategy, stopped.clone());
    let seen = loop {
        let seen = overview(&server, "").await;
        if seen["consumers"]["busiest"][0]["reserved"] == json!(2) {
            break seen;
        }
        tokio::task::yield_now().await;
    };
    let it = &seen["consumers"]["busiest"][0];
    assert_eq!(
        (&it["name"], &it["handed_out"], &it["strategy"]),
        (&json!("busy"), &json!(2), &json!(strategy.replace(')', ", Random)")))
    );
    let idle = consumer("idle", "SelectOnly(company_id=9)", stopped);
    let seen = loop {
        let seen = overview(&server, "").await;
        if seen["consumers"]["busiest"][1]["waiting"] == json!(true) {
            break seen;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!((&seen["consumers"]["connected"], &seen["consumers"]["more"]), (&json!(2), &json!(0)));
    assert_eq!(seen["consumers"]["busiest"][1]["name"], json!("idle"));
    let waited_for: Vec<&Value> = seen["strategies"]["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|it| it["waiting"] != json!(0))
        .collect();
    assert!(
        waited_for.iter().any(|it| it["strategy"] == json!("SelectOnly(company_id=9, Random)")),
        "{seen}"
    );
    stop.send(true).unwrap();
    busy.await.unwrap().unwrap();
    idle.await.unwrap().unwrap();
    server.stop().await;
}
