/**
 * A broker in memory, for tests of code that takes locks, with a switch to lose a lock:
 * {@link dev.leasehold.testing.FakeBroker}.
 */
package dev.leasehold.testing;
