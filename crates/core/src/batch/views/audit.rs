//! The audit of views: everything they keep, recounted from the running submissions and the chunks that are out.
//!
//! The checks stand in the order in which the heads of `values.rs`, `mod.rs`, `books.rs` and `view.rs` list them.

use super::tracks::Step;
use super::view::{Candidate, Known, NOWHERE, Node, Pile, ROOT, Shown, View};
use super::{ViewId, Views, groups_of};
use crate::batch::values::{FieldId, ValueCounts, ValueId, Values};
use std::collections::{BTreeMap, BTreeSet};

/// Checks the views against the running submissions, each with the number of its chunks that are out.
pub(in crate::batch) fn check(views: &Views, running: &[(Candidate<'_>, u64)]) {
    check_counts(&views.values, running);
    check_references(views, running);
    check_registers(views);
    check_plans(views);
    let had: BTreeSet<ValueId> = running.iter().flat_map(|(it, _)| it.values.iter()).collect();
    views.books.check(|value| views.values.is_missing(value) || had.contains(&value));
    let known = Known { values: &views.values, books: &views.books };
    for (id, view) in in_use(views) {
        let is_in = |it: &&(Candidate<'_>, u64)| view.is_built() || it.0.slot < view.built_to();
        let ready = running.iter().filter(is_in).map(|it| it.0).filter(|it| it.weight > 0);
        check_view(view, &ready.collect::<Vec<_>>(), known);
        assert_eq!(views.building.contains(&id), !view.is_built(), "a view that is not whole is being built");
    }
}

fn in_use(views: &Views) -> impl Iterator<Item = (ViewId, &View)> {
    let places = (0..).map(ViewId).zip(&views.slab);
    places.filter_map(|(id, place)| place.as_ref().map(|in_use| (id, &in_use.view)))
}

fn check_counts(values: &Values, running: &[(Candidate<'_>, u64)]) {
    let mut recounted = BTreeMap::<ValueId, ValueCounts>::new();
    for (it, out) in running {
        for value in it.values.iter() {
            let counts = recounted.entry(value).or_default();
            counts.ready_submissions += u64::from(it.weight > 0);
            counts.ready_chunks += it.weight;
            counts.out += out;
        }
    }
    for value in values.references().into_keys() {
        let counted = ValueCounts { handed_out: 0, ..values.counts(value) };
        let recounted = recounted.get(&value).copied().unwrap_or_default();
        assert_eq!(counted, recounted, "the counts of {:?} are sums over its submissions", values.get(value));
    }
    for field in values.field_references().into_keys() {
        let mut without = ValueCounts::default();
        for (it, out) in running.iter().filter(|(it, _)| values.is_missing(values.of_field(it.values, field)))
        {
            without.ready_submissions += u64::from(it.weight > 0);
            without.ready_chunks += it.weight;
            without.out += out;
        }
        let counted = ValueCounts { handed_out: 0, ..values.counts_without(field) };
        assert_eq!(counted, without, "the counts without {} are sums, too", values.name_of(field));
        let of_field = running.iter().map(|(it, _)| values.of_field(it.values, field));
        let had: BTreeSet<ValueId> = of_field.filter(|value| !values.is_missing(*value)).collect();
        assert_eq!(values.had(field) as usize, had.len(), "values that submissions have are counted");
    }
    let out = recounted.iter().filter(|(_, counts)| counts.out > 0).map(|(value, _)| *value);
    let in_work = values.field_references().into_keys().flat_map(|field| values.in_work(field));
    assert_eq!(in_work.collect::<BTreeSet<_>>(), out.collect(), "values in work are those with chunks out");
}

/// Every value and field is referred to by submissions, views and books, and by nothing else.
fn check_references(views: &Views, running: &[(Candidate<'_>, u64)]) {
    let values = &views.values;
    let mut of_values = BTreeMap::<ValueId, u32>::new();
    let mut of_fields = BTreeMap::<FieldId, u32>::new();
    let tracks = || in_use(views).flat_map(|(_, view)| view.tracks());
    let by_submissions = running.iter().flat_map(|(it, _)| it.values.iter());
    let by_selects = tracks().flat_map(|track| track.selects.iter().copied());
    for value in by_submissions.chain(by_selects).chain(views.books.values()) {
        *of_values.entry(value).or_default() += 1;
    }
    let by_groups = in_use(views).flat_map(|(_, view)| groups_of(view)).map(|group| group.field);
    let by_values = of_values.keys().filter(|it| !values.is_missing(**it)).map(|it| values.field_of(*it));
    for field in by_groups.chain(by_values.collect::<Vec<_>>()).chain(views.books.fields()) {
        *of_fields.entry(field).or_default() += 1;
    }
    for field in of_fields.keys() {
        *of_values.entry(values.missing(*field)).or_default() += 1;
    }
    assert_eq!(values.references(), of_values, "each value is referred to by those who have it");
    assert_eq!(values.field_references(), of_fields, "each field is referred to by those who have it");
    assert!(values.numbers_agree(), "a number is either in use or free");

    let mut of_books = BTreeMap::new();
    for fair in in_use(views).flat_map(|(_, view)| groups_of(view)).filter_map(|group| group.fair) {
        *of_books.entry(fair.book).or_default() += 1;
    }
    assert_eq!(
        views.books.references(),
        of_books,
        "each book is referred to by the views that have its turns"
    );
}

/// A change reaches every view that it concerns, and reaches it once.
fn check_registers(views: &Views) {
    let mut wide = BTreeSet::new();
    let (mut by_select, mut by_limit, mut by_turn) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (id, view) in in_use(views) {
        match view.path().selects.first_key_value() {
            None => drop(wide.insert(id)),
            Some((field, value)) => {
                let select = view.tracks()[0].selects[0];
                let (of, is) = (views.values.field_of(select), views.values.get(select));
                assert_eq!((views.values.name_of(of), is), (field.as_str(), Some(value)));
                assert!(view.tracks().iter().all(|track| track.selects[0] == select));
                by_select.insert((select, id));
            }
        }
        let groups = || groups_of(view);
        by_limit.extend(groups().filter(|it| !it.limits.is_empty()).map(|it| (it.field, id)));
        by_turn.extend(groups().filter_map(|it| it.fair).map(|fair| (fair.book, id)));
    }
    assert_eq!(unique(views.wide.iter().copied()), wide, "wide views are those without a select");
    assert_eq!(unique(pairs(&views.by_select)), by_select, "the others are found by their first select");
    assert_eq!(unique(pairs(&views.by_limit)), by_limit, "views are found by the fields they limit");
    assert_eq!(unique(pairs(&views.by_turn)), by_turn, "views are found by their books");
}

fn pairs<K: Copy>(map: &BTreeMap<K, Vec<ViewId>>) -> impl Iterator<Item = (K, ViewId)> {
    map.iter().flat_map(|(key, ids)| ids.iter().map(|id| (*key, *id)))
}

fn unique<T: Ord + std::fmt::Debug>(all: impl Iterator<Item = T>) -> BTreeSet<T> {
    let mut unique = BTreeSet::new();
    for it in all {
        assert!(!unique.contains(&it), "{it:?} is registered once");
        unique.insert(it);
    }
    unique
}

fn check_plans(views: &Views) {
    let mut users: BTreeMap<ViewId, BTreeSet<_>> = BTreeMap::new();
    for (id, plan) in &views.plans {
        assert_eq!(views.by_strategy.get(&plan.strategy), Some(id), "a plan is found by its strategy");
        for view in &plan.views {
            users.entry(*view).or_default().insert(*id);
        }
    }
    assert_eq!(views.by_strategy.len(), views.plans.len(), "no strategy has a plan that is gone");
    for (id, view) in in_use(views) {
        assert_eq!(views.by_path.get(view.path()), Some(&id), "a view is found by its path");
        let in_use = views.slab[id.0 as usize].as_ref().expect("it was just found");
        let plans: BTreeSet<_> = in_use.plans.iter().copied().collect();
        assert_eq!(users.remove(&id), Some(plans), "a view knows the plans that use it");
    }
    assert!(users.is_empty(), "no plan uses a view that is gone");
    assert_eq!(views.by_path.len(), in_use(views).count(), "no path leads to a view that is gone");
    assert!(views.woken.iter().all(|id| views.plans.contains_key(id)), "only plans in use are woken");
}

/// What a leaf should hold, by slot.
type Leaf<'a> = BTreeMap<u32, Candidate<'a>>;

fn check_view(view: &View, ready: &[Candidate<'_>], known: Known<'_>) {
    let leaves = expected_leaves(view, ready, known.values);
    let found = found_nodes(view);
    let mut reached = BTreeSet::new();
    for (path, place) in &found {
        let node = &view.nodes[*place as usize];
        reached.insert(*place);
        let below = leaves.range(path.clone()..).take_while(|(leaf, _)| leaf.starts_with(path));
        let submissions: usize = below.map(|(_, leaf)| leaf.len()).sum();
        assert_eq!(node.submissions as usize, submissions, "a node counts the submissions below it");
        assert!(submissions > 0 || *place == ROOT, "a node without submissions is gone");
        match leaves.get(path) {
            Some(leaf) => check_leaf(view, *place, leaf),
            None if submissions == 0 => assert!(children_of(view, *place).next().is_none()),
            None => check_branch(view, *place),
        }
        if *place != ROOT {
            check_shown(view, *place, known);
        }
    }
    let missing = leaves.keys().find(|path| !found.contains_key(*path));
    assert_eq!(missing, None, "a submission with a ready chunk is in the leaf of each track that it matches");
    let blocked = reached.iter().filter(|place| view.nodes[**place as usize].is_blocked);
    let blocked = blocked.map(|place| (ValueId(view.nodes[*place as usize].number), *place));
    assert_eq!(view.blocked_nodes, blocked.collect(), "the blocked nodes of a value are known");
    reached.extend(view.free.iter().copied());
    assert_eq!(reached.len(), view.nodes.len(), "a node is in the tree or free");
    assert_eq!(found.len() + view.free.len(), view.nodes.len(), "no node is both");
    for (track, places) in view.places.iter().enumerate() {
        let matching = ready.iter().filter(|it| view.matches(track, **it)).count();
        assert_eq!(places.len(), matching, "no other submission has a place");
    }
    let grouped = found.values().filter(|place| **place != ROOT).filter_map(|place| {
        let node = &view.nodes[*place as usize];
        matches!(step_of(view, node), Step::Group(_)).then_some((ValueId(node.number), *place))
    });
    let known = view.values().flat_map(|value| view.nodes_of(value).map(move |node| (value, node)));
    assert_eq!(known.collect::<BTreeSet<_>>(), grouped.collect(), "the places of a value are known");
}

/// The numbers that lead from the root to each leaf, and what should be there.
fn expected_leaves<'a>(
    view: &View,
    ready: &[Candidate<'a>],
    values: &Values,
) -> BTreeMap<Vec<u32>, Leaf<'a>> {
    let mut leaves: BTreeMap<Vec<u32>, Leaf<'a>> = BTreeMap::new();
    for (track, steps) in view.tracks().iter().map(|track| &track.steps).enumerate() {
        for it in ready.iter().filter(|it| view.matches(track, **it)) {
            let path = steps.iter().map(|step| match step {
                Step::Group(group) => values.of_field(it.values, group.field).0,
                Step::Alternative { nth, .. } => *nth,
            });
            leaves.entry(path.collect()).or_default().insert(it.slot, *it);
        }
    }
    leaves
}

fn found_nodes(view: &View) -> BTreeMap<Vec<u32>, u32> {
    let mut found = BTreeMap::new();
    let mut unseen = vec![(Vec::new(), ROOT)];
    while let Some((path, place)) = unseen.pop() {
        for (number, child) in children_of(view, place) {
            let node = &view.nodes[child as usize];
            assert_eq!((node.parent, node.number), (place, number), "a child knows where it stands");
            assert_eq!(node.depth as usize, path.len() + 1, "a child is one step below its parent");
            unseen.push((path.iter().copied().chain([number]).collect(), child));
        }
        found.insert(path, place);
    }
    assert_eq!(view.children.len(), found.len() - 1, "every child has a parent in the tree");
    found
}

fn children_of(view: &View, place: u32) -> impl Iterator<Item = (u32, u32)> {
    let children = view.children.range((place, 0)..=(place, u32::MAX));
    children.map(|((_, number), child)| (*number, *child))
}

fn step_of<'a>(view: &'a View, node: &Node) -> &'a Step {
    &view.tracks()[node.track as usize].steps[node.depth as usize - 1]
}

fn check_leaf(view: &View, place: u32, leaf: &Leaf<'_>) {
    let node = &view.nodes[place as usize];
    let track = node.track as usize;
    let order = view.tracks()[track].order;
    match &node.pile {
        Pile::Headed(pile) => {
            let expected = leaf.values().map(|it| (order.head(it.id, it.priority), it.slot));
            assert_eq!(
                in_order(pile.iter()),
                expected.collect(),
                "a leaf has its submissions in their order"
            );
        }
        Pile::Weighted(pile) => {
            let expected = leaf.values().map(|it| (it.slot, it.weight));
            let held: BTreeMap<u32, u64> = pile.iter().map(|(weight, slot)| (slot, weight)).collect();
            assert_eq!(held, expected.collect(), "a leaf has its submissions with their weights");
            assert_eq!(pile.total(), held.values().sum::<u64>());
            for (at, (_, slot)) in (0..).zip(pile.iter()) {
                let place = view.places[track].get(slot).map(|it| it.place);
                assert_eq!(place, Some(at), "a place is where it says");
            }
        }
        Pile::Keyed(_) => panic!("a leaf holds submissions"),
    }
    for slot in leaf.keys() {
        let known = view.places[track].get(*slot).map(|it| it.leaf);
        assert_eq!(known, Some(place), "a submission is known to be in its leaf");
    }
}

/// A child is in its parent's pile exactly if it shows something, and as what it shows.
fn check_branch(view: &View, place: u32) {
    let children = || {
        let children = children_of(view, place).map(|(_, child)| (child, &view.nodes[child as usize]));
        children.filter_map(|(child, node)| node.shown.map(|shown| (child, node, shown)))
    };
    match &view.nodes[place as usize].pile {
        Pile::Keyed(pile) => {
            let expected = children().map(|(child, _, shown)| match shown {
                Shown::Key(key) => (key, child),
                Shown::Weight(_) => panic!("a child shows what its parent goes by"),
            });
            assert_eq!(
                in_order(pile.iter()),
                expected.collect(),
                "a pile has the children that show something"
            );
        }
        Pile::Weighted(pile) => {
            let held: BTreeMap<u32, u64> = pile.iter().map(|(weight, child)| (child, weight)).collect();
            let showing: BTreeMap<u32, u64> = held.clone().into_iter().filter(|it| it.1 > 0).collect();
            let expected = children().map(|(child, _, shown)| match shown {
                Shown::Weight(weight) => (child, weight),
                Shown::Key(_) => panic!("a child shows what its parent goes by"),
            });
            assert_eq!(showing, expected.collect(), "a pile has the children that show something");
            assert_eq!(pile.total(), held.values().sum::<u64>());
            let elements: Vec<u32> = pile.iter().map(|(_, child)| child).collect();
            let placed = children_of(view, place).filter(|it| view.nodes[it.1 as usize].place != NOWHERE);
            let placed: Vec<u32> = placed.map(|it| it.1).collect();
            for child in &placed {
                assert_eq!(
                    elements[view.nodes[*child as usize].place as usize], *child,
                    "a place is where it says"
                );
            }
            assert_eq!(placed.len(), held.len(), "nobody else has a place");
        }
        Pile::Headed(_) => panic!("a branch holds children"),
    }
}

fn in_order<K: Ord + Copy>(pile: impl Iterator<Item = (K, u32)>) -> BTreeSet<(K, u32)> {
    let all: Vec<(K, u32)> = pile.collect();
    assert!(all.is_sorted(), "a pile is in order");
    all.into_iter().collect()
}

fn check_shown(view: &View, place: u32, known: Known<'_>) {
    let node = &view.nodes[place as usize];
    if node.is_blocked {
        assert!(view.is_saturated(place, known.values), "a node that is blocked has a saturated value");
    }
    let recomputed = view.show(place, known);
    assert_eq!(node.shown, recomputed, "a node shows what can be computed from its children");
}
