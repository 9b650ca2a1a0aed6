/**
 * The client of Leasehold, a lock broker: a lock is held while its lease lives, and the lease knows when it is not any
 * more. Begin with {@link dev.leasehold.LeaseholdClient}.
 */
package dev.leasehold;
