/**
 * A fake broker in memory for tests of code that uses locks, which can also simulate lost locks:
 * {@link dev.leasehold.testing.FakeBroker}.
 */
package dev.leasehold.testing;
