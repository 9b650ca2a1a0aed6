package dev.leasehold;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.leasehold.error.LeaseholdException;
import dev.leasehold.support.Broker;
import dev.leasehold.support.Proxy;
import dev.leasehold.support.Redis;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.Test;

/**
 * Test that several clients and threads never hold a lock at the same time, while a proxy cuts and drops their
 * connections.
 */
class MutualExclusionTest {
    private static final Duration TTL = Duration.ofSeconds(1);
    private static final int HOLDS_MIN = 60;
    private static final int FAULTS_MIN = 9;
    private static final int CLIENTS = 3;
    private static final int THREADS_PER_CLIENT = 3;

    /** Detects overlapping holders and fencing tokens that do not rise. */
    private static final class Oracle {
        private final AtomicInteger holderCount = new AtomicInteger();
        private final AtomicLong lastFencingToken = new AtomicLong();
        private final AtomicInteger holds = new AtomicInteger();
        private final AtomicInteger overlaps = new AtomicInteger();
        private final AtomicInteger staleTokens = new AtomicInteger();

        /**
         * Stays in the critical section while the lease is valid, for at most {@code checks} checks of its validity.
         */
        void hold(Lease lease, int checks) throws InterruptedException {
            if (lastFencingToken.getAndAccumulate(lease.fencingToken(), Math::max) >= lease.fencingToken()) {
                staleTokens.incrementAndGet();
            }
            if (!lease.isValid()) {
                return;
            }
            holds.incrementAndGet();
            if (holderCount.incrementAndGet() != 1) {
                overlaps.incrementAndGet();
            }
            for (int check = 0; check < checks && lease.isValid(); check++) {
                TimeUnit.MILLISECONDS.sleep(2);
            }
            holderCount.decrementAndGet();
        }
    }

    @Test
    void holdersNeverOverlap() throws Exception {
        Oracle oracle = new Oracle();
        AtomicInteger failures = new AtomicInteger();
        AtomicBoolean isDone = new AtomicBoolean();
        try (Redis redis = new Redis();
                Broker first = Broker.start(redis);
                Broker second = Broker.start(redis)) {
            List<Proxy> proxies = new ArrayList<>();
            List<LeaseholdClient> clients = new ArrayList<>();
            for (int client = 0; client < CLIENTS; client++) {
                Proxy proxy = new Proxy(client % 2 == 0 ? first : second);
                proxies.add(proxy);
                clients.add(LeaseholdClient.connect(proxy.url()));
            }
            ExecutorService threads = Executors.newFixedThreadPool(CLIENTS * THREADS_PER_CLIENT);
            List<Future<Void>> work = new ArrayList<>();
            for (int thread = 0; thread < CLIENTS * THREADS_PER_CLIENT; thread++) {
                LeaseholdClient client = clients.get(thread % CLIENTS);
                Callable<Void> task = () -> {
                    while (!isDone.get()) {
                        acquireAndHold(client, oracle, failures);
                    }
                    return null;
                };
                work.add(threads.submit(task));
            }
            for (int fault = 0; fault < FAULTS_MIN || oracle.holds.get() < HOLDS_MIN || failures.get() == 0; fault++) {
                injectFault(proxies.get(fault % CLIENTS), fault);
            }
            isDone.set(true);
            for (Future<Void> result : work) {
                result.get(30, TimeUnit.SECONDS);
            }
            clients.forEach(LeaseholdClient::close);
            proxies.forEach(Proxy::close);
            threads.shutdown();
        }
        assertEquals(0, oracle.overlaps.get());
        assertEquals(0, oracle.staleTokens.get(), "fencing tokens that do not rise");
    }

    private static void acquireAndHold(LeaseholdClient client, Oracle oracle, AtomicInteger failures)
            throws InterruptedException {
        try (Lease lease =
                client.lock("a").ttl(TTL).waitUpTo(Duration.ofSeconds(5)).acquire()) {
            // Every 20th hold lasts longer than the network outage.
            oracle.hold(lease, oracle.holds.get() % 20 == 0 ? 800 : 5);
        } catch (LeaseholdException e) {
            failures.incrementAndGet();
        }
    }

    private static void injectFault(Proxy proxy, int fault) throws InterruptedException {
        TimeUnit.MILLISECONDS.sleep(500);
        if (fault % 3 == 1) {
            proxy.dropData(true, true);
            TimeUnit.MILLISECONDS.sleep(1_300);
            proxy.dropData(false, false);
        }
        proxy.closeConnections();
    }
}
