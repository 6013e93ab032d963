//! Limits, tenants and new levels of lanes, over HTTP and the socket.

#![expect(clippy::unwrap_used, reason = "a test ends where it meets an error")]

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};
use windlass_client::frames::{ClientFrame, DoneChunk, ServerFrame, WorkOf};
use windlass_client::{Client, ConsumeSocket, Output};
use windlass_tests::here::{Here, attempt_of};
use windlass_tests::lanes::{add, complete, create, payloads, reserve, restarted, until};

fn tasks_of(key: &str, count: u32) -> Value {
    (0..count).map(|nth| json!({"key": key, "payload": format!("{key}{nth}")})).collect()
}

async fn change(server: &Here, lane: &str, change: Value) -> Value {
    let changed = server.patch(&format!("/v1/lanes/{lane}"), change).await;
    assert_eq!(changed.status, 200, "{}", changed.text);
    changed.json
}

async fn explain(server: &Here, lane: &str, task: &str) -> Value {
    let explained = server.get(&format!("/v1/lanes/{lane}/tasks/{task}")).await;
    assert_eq!(explained.status, 200, "{}", explained.text);
    explained.json
}

fn time_of(text: &Value) -> SystemTime {
    humantime::parse_rfc3339(text.as_str().unwrap()).unwrap()
}

/// Reserves exactly so many tasks: an answer holds as many as fit into it.
async fn reserve_so_many(server: &Here, count: usize) -> Vec<Value> {
    let mut got = Vec::new();
    while got.len() < count {
        let some = reserve(server, "Lane(emails)", (count - got.len()) as u64).await;
        assert!(!some.is_empty(), "{} of {count}", got.len());
        got.extend(some);
    }
    got
}

fn by_key(reservations: &[Value]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for reservation in reservations {
        *counts.entry(reservation["key"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    counts
}

#[tokio::test]
async fn a_key_at_its_limit_holds_up_nobody_and_goes_on_when_a_task_comes_back() {
    let server = Here::start(|_| {}).await;
    create(&server, "emails").await;
    change(&server, "emails", json!({"limits": {"named": {"bob": {"in_flight": 1}}}})).await;
    let bobs = add(&server, "emails", tasks_of("bob", 3)).await;
    add(&server, "emails", tasks_of("eve", 2)).await;
    let first = reserve(&server, "Lane(emails)", 10).await;
    assert_eq!(payloads(&first), ["bob0", "eve0", "eve1"]);

    let blocked = explain(&server, "emails", &bobs[1]).await;
    assert_eq!(blocked["blocked_by"][0]["name"], "bob");
    assert!(blocked["why"].as_str().unwrap().starts_with("1 of \"bob\" are with consumers"), "{blocked}");
    let shown = server.get("/v1/lanes/emails").await.json;
    assert_eq!(shown["limits"], json!({"named": {"bob": {"in_flight": 1}}}));
    assert_eq!((&shown["priorities"][0]["parked"], &shown["reserved"]), (&json!(1), &json!(3)));

    let waiting =
        server.post("/v1/reserve", json!({"max": 5, "strategy": "Lane(emails)", "wait_ms": 20_000}));
    let (waited, _) = tokio::join!(waiting, complete(&server, &first[..1]));
    assert_eq!(payloads(waited.json["reservations"].as_array().unwrap()), ["bob1"]);

    // Without the limit, whoever waits gets the rest at once.
    let waiting =
        server.post("/v1/reserve", json!({"max": 5, "strategy": "Lane(emails)", "wait_ms": 20_000}));
    let lifting = change(&server, "emails", json!({"limits": {"named": {"bob": null}}}));
    let (waited, lifted) = tokio::join!(waiting, lifting);
    assert_eq!(payloads(waited.json["reservations"].as_array().unwrap()), ["bob2"]);
    assert_eq!(lifted["limits"], json!({}));
    server.stop().await;
}

#[tokio::test]
async fn the_first_limit_of_a_key_in_a_lane_of_many_tasks_puts_them_in_order_some_with_each_request() {
    let server = Here::start(|_| {}).await;
    create(&server, "emails").await;
    let key_order = async |server: &Here| server.get("/v1/lanes/emails").await.json["key_order"].clone();
    for nth in 0..60 {
        add(&server, "emails", tasks_of(["bob", "acme/eve"][nth % 2], 1_000)).await;
    }
    assert_eq!(key_order(&server).await, json!({"state": "absent"}));
    let limits = json!({"limits": {"named": {"bob": {"in_flight": 1}}}});
    let unordered = server.patch("/v1/lanes/emails", limits.clone()).await;
    assert_eq!((unordered.status, &unordered.json["code"]), (503, &json!("lane_keys_unordered")));
    assert_eq!(unordered.json["retry_helps"], json!(true));
    let shown = key_order(&server).await;
    assert_eq!(
        (&shown["state"], shown["tasks"].as_u64() >= Some(40_000)),
        (&json!("making"), true),
        "{shown}"
    );

    // Others go on meanwhile, over a restart too, and whoever asks again gets it.
    let held = reserve(&server, "Lane(emails)", 2).await;
    complete(&server, &held).await;
    let server = restarted(server).await;
    assert_eq!(key_order(&server).await["state"], "making");
    let client = Client::new(&server.url("")).unwrap();
    let changed = client.change_lane("emails", &serde_json::from_value(limits).unwrap()).await.unwrap();
    assert_eq!(serde_json::to_value(changed.key_order).unwrap(), json!({"state": "kept"}));
    let got = reserve_so_many(&server, 50).await;
    assert_eq!(by_key(&got), BTreeMap::from([("acme/eve".to_owned(), 49), ("bob".to_owned(), 1)]));
    server.stop().await;
}

#[tokio::test]
async fn a_rate_lets_a_burst_out_and_then_one_after_the_other() {
    let server = Here::start(|_| {}).await;
    create(&server, "emails").await;
    change(&server, "emails", json!({"limits": {"each_key": {"per_second": 5, "burst": 2}}})).await;
    let ids = add(&server, "emails", tasks_of("bob", 4)).await;
    add(&server, "emails", tasks_of("eve", 1)).await;
    assert_eq!(payloads(&reserve(&server, "Lane(emails)", 10).await), ["bob0", "eve0", "bob1"]);
    let blocked = explain(&server, "emails", &ids[2]).await;
    let free_at = time_of(&blocked["blocked_by"][0]["free_at"]);
    for nth in 2..4 {
        let body = json!({"max": 10, "strategy": "Lane(emails)", "wait_ms": 20_000});
        let waited = server.post("/v1/reserve", body).await.json;
        assert_eq!(payloads(waited["reservations"].as_array().unwrap()), [format!("bob{nth}")]);
        assert!(SystemTime::now() >= free_at, "it comes when it was said to be free, and not before");
    }
    server.stop().await;
}

async fn connect(server: &Here, session: Option<u64>) -> (ConsumeSocket, u64) {
    let client = Client::new(&server.url("")).unwrap();
    let (socket, welcome) = ConsumeSocket::connect(&client, "test", session).await.unwrap();
    (socket, welcome.session)
}

async fn ask(socket: &mut ConsumeSocket, strategy: &str) {
    let reserve =
        ClientFrame::Reserve { request: 1, max: 9, strategy: strategy.into(), after_reports: false };
    socket.send(&reserve).await.unwrap();
}

async fn work(socket: &mut ConsumeSocket) -> Vec<WorkOf> {
    match socket.receive().await.unwrap() {
        Some(ServerFrame::Work { work, .. }) => work,
        other => panic!("work was expected, not {other:?}"),
    }
}

#[tokio::test]
async fn a_limit_of_tasks_in_flight_holds_over_a_restart_and_counts_what_consumers_still_have() {
    let server = Here::start(|config| config.grace_ms = 30_000).await;
    create(&server, "emails").await;
    change(&server, "emails", json!({"limits": {"lane": {"in_flight": 1}}})).await;
    let ids = add(&server, "emails", tasks_of("bob", 2)).await;
    let (mut anna, session) = connect(&server, None).await;
    ask(&mut anna, "\"Lane(emails)\"").await;
    let held = work(&mut anna).await.remove(0);
    let mut server = restarted(server).await;

    assert!(reserve(&server, "Lane(emails)", 5).await.is_empty(), "the consumer may still work on its task");
    let held_up = explain(&server, "emails", &ids[1]).await;
    assert!(held_up["why"].to_string().contains("earlier leader"), "{held_up}");
    let left = time_of(&held_up["blocked_by"][0]["free_at"]).duration_since(SystemTime::now());
    assert!(left.unwrap() <= Duration::from_secs(30), "it ends with the grace time at the latest: {held_up}");
    // It comes back and says what it works on: that is all that may be out.
    let (mut anna, _) = connect(&server, Some(session)).await;
    let (submission, chunks) = (held.submission, held.chunks.clone());
    anna.send(&ClientFrame::Reassert { request: 2, submission, chunks }).await.unwrap();
    assert!(matches!(anna.receive().await.unwrap(), Some(ServerFrame::Settled { .. })));
    assert!(reserve(&server, "Lane(emails)", 5).await.is_empty(), "one is out");
    let done = vec![DoneChunk { chunk: held.chunks[0], output: Output::Nothing, entries: None }];
    anna.send(&ClientFrame::Complete { request: 3, submission: held.submission, done }).await.unwrap();
    until(&server, "emails", |lane| lane["done"] == 1).await;
    assert_eq!(payloads(&reserve(&server, "Lane(emails)", 5).await), ["bob1"]);
    drop(anna);
    server.folder.take();
    server.stop().await;
}

#[tokio::test]
async fn a_tenant_gets_one_share_however_many_users_it_has_and_its_users_share_that() {
    let server = Here::start(|_| {}).await;
    create(&server, "emails").await;
    let of_acme: Value =
        (0..600).map(|nth| json!({"key": format!("acme/u{}", nth % 200), "payload": ""})).collect();
    add(&server, "emails", of_acme).await;
    add(&server, "emails", tasks_of("beta/u0", 300)).await;
    add(&server, "emails", tasks_of("gamma", 300)).await;
    let counts = by_key(&reserve_so_many(&server, 600).await);
    let of_acme: usize =
        counts.iter().filter(|(key, _)| key.starts_with("acme/")).map(|(_, count)| count).sum();
    assert_eq!((of_acme, counts["beta/u0"], counts["gamma"]), (200, 200, 200));
    assert!(counts.iter().filter(|(key, _)| key.starts_with("acme/")).all(|(_, count)| *count == 1));
    let shown = server.get("/v1/lanes/emails").await.json;
    let of_acme = shown["busiest"].as_array().unwrap().iter().find(|it| it["key"] == "acme/").unwrap();
    for share in [&of_acme["entitled"], &of_acme["shares"]["minutes_1"], &of_acme["shares"]["minutes_15"]] {
        assert!((share.as_f64().unwrap() - 1.0 / 3.0).abs() < 0.01, "{of_acme}");
    }

    // Who is not among the busiest is shown by name: a tenant with its users, or one of these.
    let of_acme = server.get("/v1/lanes/emails?key=acme/").await.json["busiest"].clone();
    assert_eq!((&of_acme[0]["key"], &of_acme[0]["waiting"]), (&json!("acme/"), &json!(600)));
    assert_eq!(of_acme.as_array().unwrap().len(), 1 + 20, "the tenant, and as many users as fit on a screen");
    let of_user = server.get("/v1/lanes/emails?key=acme/u7").await.json["busiest"][0].clone();
    assert_eq!(of_user["waiting"], 3);
    let part = of_user["entitled"].as_f64().unwrap() * 3.0 * 200.0;
    assert!((part - 1.0).abs() < 0.01, "a 200th of a third: {of_user}");
    let nobody = server.get("/v1/lanes/emails?key=nobody").await.json["busiest"][0].clone();
    assert_eq!((&nobody["key"], &nobody["waiting"]), (&json!("nobody"), &json!(0)));
    assert_eq!(server.get("/v1/lanes/emails?keys=0").await.json["busiest"], json!([]));
    assert_eq!(server.get("/v1/lanes/emails?keys=1001").await.status, 422);
    assert_eq!(server.get("/v1/lanes/emails?keys=1&key=a").await.status, 422);

    // A limit of the tenant holds for all its users together; its weight counts at once.
    let limits = json!({"limits": {"named": {"acme/": {"in_flight": 200}}}, "weights": {"beta/": 2}});
    change(&server, "emails", limits).await;
    let of_beta = server.get("/v1/lanes/emails?key=beta/").await.json["busiest"][0].clone();
    assert_eq!((&of_beta["weight"], &of_beta["entitled"]), (&json!(2.0), &json!(0.5)), "two of four parts");
    let more = by_key(&reserve_so_many(&server, 90).await);
    assert_eq!((more["beta/u0"], more["gamma"], more.len()), (60, 30, 2));
    server.stop().await;
}

#[tokio::test]
async fn a_weight_counts_for_the_backlog_once_it_is_given_new_levels() {
    let server = Here::start(|_| {}).await;
    create(&server, "emails").await;
    for key in ["a", "b", "acme/u", "acme/v"] {
        add(&server, "emails", tasks_of(key, 700)).await;
        add(&server, "emails", tasks_of(key, 700)).await;
    }
    change(&server, "emails", json!({"weights": {"b": 4, "acme/v": 3}})).await;
    let before = by_key(&reserve_so_many(&server, 300).await);
    assert_eq!([before["a"], before["b"], before["acme/u"], before["acme/v"]], [100, 100, 50, 50]);
    let mut request = json!({});
    let mut moved = 0;
    loop {
        let done = server.post("/v1/lanes/emails/relevel", request).await;
        assert_eq!(done.status, 200, "{}", done.text);
        moved += done.json["tasks"].as_u64().unwrap();
        let Some(next) = done.json["next"].as_str() else { break };
        request = json!({"cursor": next});
    }
    assert!(moved >= 2_500, "{moved} tasks of two keys were moved");
    let after = by_key(&reserve_so_many(&server, 600).await);
    assert_eq!([after["a"], after["b"]], [100, 400]);
    assert!(after["acme/v"].abs_diff(75) <= 1 && after["acme/u"].abs_diff(25) <= 1, "{after:?}");
    server.stop().await;
}

#[tokio::test]
async fn a_task_knows_what_is_ahead_of_it_and_how_many_go_first_at_most() {
    let server = Here::start(|_| {}).await;
    create(&server, "emails").await;
    let a = add(&server, "emails", tasks_of("a", 10)).await;
    add(&server, "emails", tasks_of("b", 10)).await;
    let users =
        add(&server, "emails", json!([{"key": "acme/u"}, {"key": "acme/v"}, {"key": "acme/u"}])).await;
    let last = explain(&server, "emails", &a[4]).await;
    assert_eq!((&last["ahead"], &last["wait_bound"]), (&json!(4 + 4 + 3), &json!(4 + 4 + 5)), "{last}");
    let of_user = explain(&server, "emails", &users[2]).await;
    assert_eq!(
        (&of_user["ahead"], &of_user["wait_bound"]),
        (&json!(2 + 3 + 3), &json!(3 + 4 + 4)),
        "v may get another task before it, and then a and b go once more: {of_user}"
    );
    server.stop().await;
}

#[tokio::test]
async fn what_is_said_to_be_ahead_of_each_task_is_what_goes_first_also_of_keys_that_have_met_a_limit() {
    for limited in ["a", "acme/u"] {
        let other = if limited == "a" { "b" } else { "acme/v" };
        let server = Here::start(|_| {}).await;
        create(&server, "emails").await;
        change(&server, "emails", json!({"limits": {"named": {limited: {"in_flight": 1}}}})).await;
        let of_limited = add(&server, "emails", tasks_of(limited, 10)).await;
        let held = reserve(&server, "Lane(emails)", 2).await;
        assert_eq!(payloads(&held).len(), 1, "from here on it goes by turns");
        let of_other = add(&server, "emails", tasks_of(other, 20)).await;
        add(&server, "emails", tasks_of("carl", 20)).await;
        let went = reserve(&server, "Lane(emails)", 19).await;
        change(&server, "emails", json!({"limits": {"named": {limited: null}}})).await;
        complete(&server, &held).await;

        let mut said = BTreeMap::new();
        for task in of_limited.iter().chain(&of_other) {
            let explained = server.get(&format!("/v1/lanes/emails/tasks/{task}")).await.json;
            if explained["standing"] == "waiting" {
                said.insert(task.clone(), explained["ahead"].as_u64().unwrap());
            }
        }
        assert!(said.len() > 15, "{said:?}");
        complete(&server, &went).await;
        let rest = reserve(&server, "Lane(emails)", 100).await;
        let went = rest.iter().map(|it| it["submission"].as_str().unwrap());
        for (before, task) in went.enumerate() {
            if let Some(said) = said.get(task) {
                assert_eq!(*said, before as u64, "{limited}: what was said of {task}");
            }
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn what_is_ahead_of_a_user_is_counted_also_while_its_tenant_is_at_a_limit() {
    let server = Here::start(|_| {}).await;
    create(&server, "emails").await;
    change(&server, "emails", json!({"limits": {"named": {"acme/": {"in_flight": 1}}}})).await;
    add(&server, "emails", tasks_of("acme/v", 6)).await;
    let of_user = add(&server, "emails", tasks_of("acme/u", 4)).await;
    let mut held = reserve(&server, "Lane(emails)", 10).await;
    assert_eq!(held.len(), 1, "the tenant is at its limit");
    let last = explain(&server, "emails", &of_user[3]).await;
    assert_eq!(last["blocked_by"][0]["kind"], "in_flight", "{last}");
    let mut ahead = 0;
    loop {
        complete(&server, &held).await;
        held = reserve(&server, "Lane(emails)", 10).await;
        if held[0]["submission"] == json!(of_user[3]) {
            break;
        }
        ahead += 1;
    }
    assert_eq!(last["ahead"], json!(ahead), "{last}");
    assert_eq!(last["ahead_by_key"], json!([{"key": "acme/", "priority": 0, "waiting": ahead}]));
    server.stop().await;
}

#[tokio::test]
async fn a_task_that_waits_for_a_lease_of_its_key_knows_when_that_is_over_at_the_latest() {
    let server = Here::start(|_| {}).await;
    create(&server, "emails").await;
    change(&server, "emails", json!({"limits": {"each_key": {"in_flight": 1}}})).await;
    add(&server, "emails", tasks_of("eve", 1)).await;
    let ids = add(&server, "emails", tasks_of("bob", 2)).await;
    let lease_ms = [60_000, 600_000].map(|ms| json!({"max": 1, "strategy": "Lane(emails)", "lease_ms": ms}));
    let before = SystemTime::now();
    for body in lease_ms {
        let reserved = server.post("/v1/reserve", body).await.json;
        assert_eq!(reserved["reservations"].as_array().unwrap().len(), 1);
    }
    let blocked = explain(&server, "emails", &ids[1]).await;
    let left = time_of(&blocked["blocked_by"][0]["free_at"]).duration_since(before).unwrap();
    assert!(
        (Duration::from_secs(590)..Duration::from_secs(660)).contains(&left),
        "not that of eve: {blocked}"
    );
    assert_eq!(blocked["no_wait_bound"], "a limit is in its way");
    server.stop().await;
}

#[tokio::test]
async fn a_limit_below_what_is_out_says_how_many_are_out_and_when_there_is_room_for_one() {
    let server = Here::start(|_| {}).await;
    create(&server, "emails").await;
    change(&server, "emails", json!({"limits": {"each_key": {"in_flight": 9}}})).await;
    let ids = add(&server, "emails", tasks_of("bob", 6)).await;
    let before = SystemTime::now();
    let mut held = Vec::new();
    for minutes in 1..=5 {
        let body = json!({"max": 1, "strategy": "Lane(emails)", "lease_ms": minutes * 60_000});
        held.extend(server.post("/v1/reserve", body).await.json["reservations"].as_array().unwrap().clone());
    }
    change(&server, "emails", json!({"limits": {"named": {"bob": {"in_flight": 2}}}})).await;
    let minutes_until =
        |block: &Value| time_of(&block["free_at"]).duration_since(before).unwrap().as_secs_f64() / 60.0;
    let explained = explain(&server, "emails", &ids[5]).await;
    let why = "5 of \"bob\" are with consumers, more than the 2 that may be: 4 have to come back before there is room";
    assert_eq!((&explained["why"], &explained["blocked_by"][0]["why"]), (&json!(why), &json!(why)));
    let minutes = minutes_until(&explained["blocked_by"][0]);
    assert!((4.0..4.5).contains(&minutes), "with the end of the fourth lease: {explained}");
    // A look at the lane says the same of each key that is shown.
    for path in ["/v1/lanes/emails", "/v1/lanes/emails?key=bob"] {
        let shown = server.get(path).await.json["busiest"][0]["blocked_by"].clone();
        assert_eq!(shown, explained["blocked_by"], "{path}");
    }
    complete(&server, &held[..3]).await;
    let explained = explain(&server, "emails", &ids[5]).await;
    let why = "2 of \"bob\" are with consumers, as many as may be; one that comes back makes room";
    assert_eq!(explained["why"], why);
    assert!(
        (4.0..4.5).contains(&minutes_until(&explained["blocked_by"][0])),
        "the first of two: {explained}"
    );
    complete(&server, &held[3..4]).await;
    assert_eq!(payloads(&reserve(&server, "Lane(emails)", 5).await), ["bob5"]);
    server.stop().await;
}

#[tokio::test]
async fn a_share_is_one_of_what_its_priority_got_as_what_a_key_is_entitled_to_is() {
    let server = Here::start(|_| {}).await;
    create(&server, "emails").await;
    add(&server, "emails", tasks_of("a", 30)).await;
    add(&server, "emails", tasks_of("b", 30)).await;
    let high: Value = (0..40).map(|_| json!({"key": "b", "priority": 3, "payload": ""})).collect();
    add(&server, "emails", high).await;
    let mut held = reserve_so_many(&server, 60).await;
    let busiest = server.get("/v1/lanes/emails").await.json["busiest"].clone();
    let busiest = busiest.as_array().unwrap();
    for (key, priority, entitled, share) in [("a", 0, 0.5, 0.5), ("b", 0, 0.5, 0.5), ("b", 3, 1.0, 1.0)] {
        let it = busiest.iter().find(|it| it["key"] == key && it["priority"] == priority).unwrap();
        let near = |of: &Value, to: f64| (of.as_f64().unwrap() - to).abs() < 0.01;
        assert!(near(&it["entitled"], entitled) && near(&it["shares"]["minutes_1"], share), "{it}");
    }
    // What has nothing left in a priority is shown with what it got there.
    held.extend(reserve_so_many(&server, 40).await);
    complete(&server, &held).await;
    until(&server, "emails", |lane| lane["done"] == 100).await;
    change(&server, "emails", json!({"weights": {"b": 5, "c": 5}})).await;
    for (key, weight, priorities) in [("b", 5.0, &[3, 0][..]), ("c", 5.0, &[0]), ("d", 1.0, &[0])] {
        let shown = server.get(&format!("/v1/lanes/emails?key={key}")).await.json["busiest"].clone();
        let shown = shown.as_array().unwrap();
        assert!(shown.iter().all(|it| it["waiting"] == 0 && it["weight"] == weight), "{shown:?}");
        let seen: Vec<&Value> = shown.iter().map(|it| &it["priority"]).collect();
        assert_eq!(
            seen,
            priorities.iter().map(|it| json!(it)).collect::<Vec<_>>().iter().collect::<Vec<_>>()
        );
    }
    server.stop().await;
}

#[tokio::test]
async fn what_is_said_of_a_lane_with_very_many_tenants_leaves_none_of_them_out() {
    const TENANTS: u64 = 70_000;
    let server = Here::start(|_| {}).await;
    create(&server, "emails").await;
    for begin in (0..TENANTS).step_by(1_000) {
        let tasks: Value = (begin..begin + 1_000).map(|nth| json!({"key": format!("t{nth:05}/u")})).collect();
        add(&server, "emails", tasks).await;
    }
    let last = add(&server, "emails", json!([{"key": "a"}])).await;
    let explained = explain(&server, "emails", &last[0]).await;
    assert_eq!((&explained["ahead"], &explained["has_more_ahead"]), (&json!(TENANTS), &json!(false)));
    assert_eq!(explained["ahead_by_key"].as_array().unwrap().len(), 20);
    let bound = explained["wait_bound"].as_u64().unwrap();
    assert!((TENANTS..2 * TENANTS).contains(&bound), "a turn of each tenant: {bound}");

    // The busiest users of a tenant are found however many there are, and behind whatever names.
    for begin in (0..TENANTS).step_by(1_000) {
        let tasks: Value = (begin..begin + 1_000).map(|nth| json!({"key": format!("z/u{nth:05}")})).collect();
        add(&server, "emails", tasks).await;
    }
    add(&server, "emails", tasks_of("z/zoe", 5)).await;
    let shown = server.get("/v1/lanes/emails?key=z/").await.json["busiest"].clone();
    assert_eq!((&shown[0]["key"], &shown[1]["key"]), (&json!("z/"), &json!("z/zoe")), "{shown}");
    assert_eq!(shown.as_array().unwrap().len(), 1 + 20);
    server.stop().await;
}

#[tokio::test]
async fn keys_that_got_much_and_have_nothing_left_are_shown_though_users_got_more() {
    let server = Here::start(|_| {}).await;
    create(&server, "emails").await;
    for nth in 0..30 {
        add(&server, "emails", tasks_of(&format!("acme/u{nth}"), 2)).await;
    }
    add(&server, "emails", tasks_of("bob", 1)).await;
    add(&server, "emails", tasks_of("eve", 1)).await;
    let held = reserve_so_many(&server, 62).await;
    complete(&server, &held).await;
    until(&server, "emails", |lane| lane["done"] == 62).await;
    let shown = server.get("/v1/lanes/emails?keys=3").await.json["busiest"].clone();
    let shown: Vec<&str> = shown.as_array().unwrap().iter().map(|it| it["key"].as_str().unwrap()).collect();
    assert_eq!(shown, ["acme/", "bob", "eve"]);
    server.stop().await;
}

#[tokio::test]
async fn limits_that_make_no_sense_are_refused_with_what_to_do() {
    let server = Here::start(|_| {}).await;
    create(&server, "emails").await;
    for (limits, sentence) in [
        (json!({"lane": {"per_second": 0}}), "a rate is from 0.001 to 1000000 a second"),
        (json!({"lane": {"per_second": -1}}), "a rate is from 0.001"),
        (json!({"each_key": {"per_second": 1, "burst": 0}}), "with a burst of 1 to"),
        (json!({"each_key": {"burst": 5}}), "`burst` goes with `per_second`"),
        (json!({"each_tenant": {"in_flight": 1_000_001}}), "at most 1000000"),
        (json!({"named": {("x".repeat(65)): {"in_flight": 1}}}), "at most 64 bytes"),
        (json!({"key": {}}), "unknown field"),
    ] {
        let refused = server.patch("/v1/lanes/emails", json!({"limits": limits})).await;
        assert!((400..500).contains(&refused.status), "{}", refused.text);
        assert!(refused.text.contains(sentence), "{}", refused.text);
    }
    assert_eq!(
        server.patch("/v1/lanes/none", json!({"limits": {"lane": {"in_flight": 1}}})).await.status,
        404
    );
    let weightless = server.post("/v1/lanes/emails/relevel", json!({"keys": ["a"]})).await;
    assert_eq!(weightless.status, 200, "a lane without tasks has nothing to move: {}", weightless.text);
    add(&server, "emails", tasks_of("a", 1)).await;
    let weightless = server.post("/v1/lanes/emails/relevel", json!({"keys": ["a"]})).await;
    assert!(weightless.text.contains("has no weight by its name"), "{}", weightless.text);
    let lost = server.post("/v1/lanes/emails/relevel", json!({"cursor": "nonsense"})).await;
    assert!(lost.text.contains("`cursor` is the `next`"), "{}", lost.text);
    let no_user = server.post("/v1/lanes/emails/tasks", json!({"tasks": [{"key": "acme/"}]})).await;
    assert!(no_user.status == 400 || no_user.status == 422, "{}", no_user.text);
    assert!(no_user.text.contains("names no user"), "{}", no_user.text);
    server.stop().await;
}

#[tokio::test]
async fn a_task_that_its_consumer_gives_back_makes_room_under_a_limit() {
    let server = Here::start(|_| {}).await;
    create(&server, "emails").await;
    change(&server, "emails", json!({"limits": {"each_key": {"in_flight": 1}}})).await;
    add(&server, "emails", tasks_of("bob", 2)).await;
    let first = reserve(&server, "Lane(emails)", 5).await;
    assert_eq!(payloads(&first), ["bob0"]);
    let released = server.post("/v1/release", json!({"chunks": [attempt_of(&first[0])]})).await;
    assert_eq!(released.status, 200, "{}", released.text);
    assert_eq!(payloads(&reserve(&server, "Lane(emails)", 5).await), ["bob0"]);
    server.stop().await;
}
