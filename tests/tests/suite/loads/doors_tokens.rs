//! Locks and replaced bearer tokens, in every language: a lock is kept while the token file has a
//! valid token, and no longer.

use std::panic::AssertUnwindSafe;

use futures::{
    future::FutureExt as _,
    stream::{self, StreamExt as _},
};
use leasehold_tests::suite::{
    authentication::a_lock_ends_with_the_last_of_its_tokens,
    language::{Cast, Language},
};

const AT_ONCE: usize = 3;

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_lives_as_long_as_the_tokens_of_its_file() {
    // The scenarios mostly wait, so some run concurrently.
    let played = Language::ALL.map(async |one| {
        let cast = Cast { one, other: one };
        let played = AssertUnwindSafe(a_lock_ends_with_the_last_of_its_tokens(cast));
        let failed = played.catch_unwind().await.is_err();
        failed.then_some(one)
    });
    let played = stream::iter(played)
        .buffer_unordered(AT_ONCE)
        .collect::<Vec<_>>();
    let failed: Vec<_> = played.await.into_iter().flatten().collect();
    assert!(failed.is_empty(), "the panics above are of {failed:?}");
}
