// What tests outside of the package need of its inside.

package leasehold

// SecretsOf are the secrets of a lease that is held.
func SecretsOf(l *Lease) []string {
	core := l.grip.keeper.core
	core.mu.Lock()
	defer core.mu.Unlock()
	return []string{l.grip.requestID, l.grip.keeper.leases.all[l.grip.leaseID].lease.GetLeaseToken()}
}
