// Access to internal state for tests outside of the package.

package leasehold

// SecretsOf returns the secrets of a held lease: its request id and its lease token.
func SecretsOf(l *Lease) []string {
	runtime := l.handle.session.runtime
	runtime.mu.Lock()
	defer runtime.mu.Unlock()
	return []string{l.handle.requestID, l.handle.session.leases.all[l.handle.leaseID].proto.GetLeaseToken()}
}
