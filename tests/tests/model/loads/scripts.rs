//! Histories of the model on the scripts of one server and of a cluster.

use leasehold_tests::{
    model::{
        random::{RandomWalk, STEPS},
        scripts::{ScriptReplay, StoreForm},
    },
    redis::shared_server::own_nodes,
    scale::{print_figures, scaled_count},
};

/// Number of histories at full scale, for each form.
const HISTORIES: usize = 70_000;

#[test]
fn the_scripts_of_one_server_reply_like_the_specification() {
    replay(StoreForm::Node, 0);
}

#[test]
fn the_scripts_of_a_cluster_reply_like_the_specification() {
    replay(StoreForm::Cluster, 1);
}

fn replay(form: StoreForm, node: usize) {
    let histories = scaled_count(HISTORIES / 10, 500) as u64;
    let mut replay = ScriptReplay::new(own_nodes()[node], form, str::to_owned);
    let mut commands = 0;
    for seed in 0..histories {
        let mut walk = RandomWalk::new(seed, true);
        assert!(walk.run(STEPS).is_ok(), "seed {seed} violates a property");
        let journal = walk.world.store.journal.take().expect("a journal");
        commands += journal.len();
        if let Some(difference) = replay.run(&journal) {
            panic!("seed {seed}, {form:?}: {difference:#?}");
        }
    }
    print_figures(&format!(
        "model on {form:?}: {histories} histories of {STEPS} actions, {commands} commands, 0 differences"
    ));
}
