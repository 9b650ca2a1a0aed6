//! Paged lists of locks.

use leasehold_proto::v1::{
    ListLocksRequest, ListLocksResponse, inspection_service_client::InspectionServiceClient,
};
use tonic::Status;

use super::Client;

impl Client {
    /// Returns one page from one endpoint.
    pub async fn page_at(
        &self,
        at: usize,
        request: &ListLocksRequest,
    ) -> Result<ListLocksResponse, Status> {
        let mut inspection = InspectionServiceClient::new(self.channel(at));
        let page = inspection.list_locks(request.clone()).await;
        page.map(tonic::Response::into_inner)
    }

    /// Returns all pages of a list, each from the next endpoint.
    pub async fn pages(
        &self,
        request: &ListLocksRequest,
    ) -> Result<Vec<ListLocksResponse>, Status> {
        let (mut pages, mut request) = (Vec::new(), request.clone());
        loop {
            let page = self.page_at(pages.len(), &request).await?;
            request.page_token.clone_from(&page.next_page_token);
            pages.push(page);
            if request.page_token.is_empty() {
                return Ok(pages);
            }
        }
    }
}

/// Returns the lock names on these pages, sorted. Asserts that the pages contain no waiters, which
/// lists only count.
#[must_use]
pub fn names_on_pages(pages: &[ListLocksResponse]) -> Vec<String> {
    let locks = pages.iter().flat_map(|page| &page.locks);
    let name = |lock: &leasehold_proto::v1::Lock| {
        assert_eq!(lock.waiters, [], "waiters are left out");
        lock.target.clone().expect("a lock has a name").name
    };
    let mut names: Vec<_> = locks.map(name).collect();
    names.sort_unstable();
    names
}
