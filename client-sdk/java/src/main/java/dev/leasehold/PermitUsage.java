package dev.leasehold;

/**
 * The limit of a semaphore, and its permits in use.
 *
 * @param limit the limit in use
 * @param used number of permits that the holders have; more than the limit if it was lowered while they were held
 * @param isLimitSet true if the limit was set with {@link LeaseholdClient#setLimit(Target, int)}; false if it is the
 *     limit of the present callers
 */
public record PermitUsage(int limit, int used, boolean isLimitSet) {
    /**
     * Returns the number of free permits.
     *
     * @return 0 if more permits are used than the limit allows
     */
    public int free() {
        return Math.max(0, limit - used);
    }
}
