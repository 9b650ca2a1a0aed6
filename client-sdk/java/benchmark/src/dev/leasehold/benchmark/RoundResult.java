package dev.leasehold.benchmark;

import java.util.stream.LongStream;

/** Statistics of the callers of one round. */
final class RoundResult {
    private final double seconds;
    private final long[] pairCounts;
    private long longestWaitNanos;
    private long handOffs;
    private int lastHolder = -1;

    RoundResult(int callers, double seconds) {
        this.seconds = seconds;
        pairCounts = new long[callers];
    }

    /** Records that a caller has acquired the common lock. Called while the caller holds the lock. */
    void recordAcquire(int caller, long waitedNanos) {
        longestWaitNanos = Math.max(longestWaitNanos, waitedNanos);
        if (caller != lastHolder) {
            handOffs++;
            lastHolder = caller;
        }
    }

    void recordPair(int caller) {
        pairCounts[caller]++;
    }

    double pairsPerSecond() {
        return LongStream.of(pairCounts).sum() / seconds;
    }

    double handOffsPerSecond() {
        return handOffs / seconds;
    }

    double longestWaitMillis() {
        return longestWaitNanos / 1e6;
    }

    /** Returns Jain's index: 1 if all callers held the lock equally often, 1 / callers if only one caller held it. */
    double fairness() {
        double sum = LongStream.of(pairCounts).sum();
        double squares = LongStream.of(pairCounts)
                .mapToDouble(count -> (double) count * count)
                .sum();
        return squares == 0 ? 0 : sum * sum / (pairCounts.length * squares);
    }
}
