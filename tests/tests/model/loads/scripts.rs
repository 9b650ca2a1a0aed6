//! Histories of the models on the scripts of one server, of a cluster and of the nodes of a RedLock
//! store.

use leasehold_tests::{
    model::{
        random::{RandomWalk, Walk},
        redlock::{NODES, random::RedlockWalk},
        scripts::{ScriptReplay, StoreForm},
    },
    redis::shared_server::own_nodes,
    scale::{print_figures, scaled_count},
};

/// Number of histories at full scale, for each form.
const HISTORIES: usize = 7_000;
/// Number of histories of a RedLock store at full scale.
const REDLOCK_HISTORIES: usize = 2_000;

#[test]
fn the_scripts_of_one_server_reply_like_the_specification() {
    replay::<RandomWalk>(StoreForm::Node, 0, 1, HISTORIES);
}

#[test]
fn the_scripts_of_a_cluster_reply_like_the_specification() {
    replay::<RandomWalk>(StoreForm::Cluster, 1, 1, HISTORIES);
}

#[test]
fn the_scripts_of_redlock_nodes_reply_like_the_specification() {
    replay::<RedlockWalk>(StoreForm::Node, 0, NODES, REDLOCK_HISTORIES);
}

/// Replays histories of a world with `stores` stores, which are different keys of one server.
fn replay<W: Walk>(form: StoreForm, server: usize, stores: usize, histories: usize) {
    let histories = scaled_count(histories, 500) as u64;
    let new_replay = |_| ScriptReplay::new(own_nodes()[server], form, str::to_owned);
    let mut replays: Vec<_> = (0..stores).map(new_replay).collect();
    let mut commands = 0;
    for seed in 0..histories {
        let mut walk = W::new(seed, true);
        assert!(walk.run().is_ok(), "seed {seed} violates a property");
        let journals = walk.into_results().journals;
        assert_eq!(journals.len(), stores);
        for (store, (replay, journal)) in replays.iter_mut().zip(&journals).enumerate() {
            commands += journal.len();
            if let Some(difference) = replay.run(journal) {
                panic!("seed {seed}, {form:?} {store}: {difference:#?}");
            }
        }
    }
    print_figures(&format!(
        "model on {form:?}, {stores} stores: {histories} histories of {} actions, {commands} \
         commands, 0 differences",
        W::STEPS
    ));
}
