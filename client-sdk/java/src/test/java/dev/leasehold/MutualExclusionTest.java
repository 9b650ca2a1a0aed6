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
 * Several clients and threads, whose connections are cut and swallowed meanwhile, never have a lock at the same time.
 */
class MutualExclusionTest {
    private static final Duration TTL = Duration.ofSeconds(1);
    private static final int VISITS = 60;
    private static final int FAULTS = 9;
    private static final int CLIENTS = 3;
    private static final int THREADS = 3;

    /** Sees who is inside, and in which order they come. */
    private static final class Witness {
        private final AtomicInteger inside = new AtomicInteger();
        private final AtomicLong newest = new AtomicLong();
        private final AtomicInteger visits = new AtomicInteger();
        private final AtomicInteger overlaps = new AtomicInteger();
        private final AtomicInteger stale = new AtomicInteger();

        /** A visit as long as the lease is valid, at most so many looks. */
        void visit(Lease lease, int looks) throws InterruptedException {
            if (newest.getAndAccumulate(lease.fencingToken(), Math::max) >= lease.fencingToken()) {
                stale.incrementAndGet();
            }
            if (!lease.isValid()) {
                return;
            }
            visits.incrementAndGet();
            if (inside.incrementAndGet() != 1) {
                overlaps.incrementAndGet();
            }
            for (int look = 0; look < looks && lease.isValid(); look++) {
                TimeUnit.MILLISECONDS.sleep(2);
            }
            inside.decrementAndGet();
        }
    }

    @Test
    void nobodyIsInsideBesideAnother() throws Exception {
        Witness witness = new Witness();
        AtomicInteger losses = new AtomicInteger();
        AtomicBoolean isOver = new AtomicBoolean();
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
            ExecutorService threads = Executors.newFixedThreadPool(CLIENTS * THREADS);
            List<Future<Void>> work = new ArrayList<>();
            for (int thread = 0; thread < CLIENTS * THREADS; thread++) {
                LeaseholdClient client = clients.get(thread % CLIENTS);
                Callable<Void> visits = () -> {
                    while (!isOver.get()) {
                        visit(client, witness, losses);
                    }
                    return null;
                };
                work.add(threads.submit(visits));
            }
            for (int fault = 0; fault < FAULTS || witness.visits.get() < VISITS || losses.get() == 0; fault++) {
                trouble(proxies.get(fault % CLIENTS), fault);
            }
            isOver.set(true);
            for (Future<Void> one : work) {
                one.get(30, TimeUnit.SECONDS);
            }
            clients.forEach(LeaseholdClient::close);
            proxies.forEach(Proxy::close);
            threads.shutdown();
        }
        assertEquals(0, witness.overlaps.get());
        assertEquals(0, witness.stale.get(), "tokens rise");
    }

    private static void visit(LeaseholdClient client, Witness witness, AtomicInteger losses)
            throws InterruptedException {
        try (Lease lease =
                client.lock("a").ttl(TTL).waitUpTo(Duration.ofSeconds(5)).acquire()) {
            // Now and then longer than the network is away.
            witness.visit(lease, witness.visits.get() % 20 == 0 ? 800 : 5);
        } catch (LeaseholdException e) {
            losses.incrementAndGet();
        }
    }

    private static void trouble(Proxy proxy, int fault) throws InterruptedException {
        TimeUnit.MILLISECONDS.sleep(500);
        if (fault % 3 == 1) {
            proxy.swallow(true, true);
            TimeUnit.MILLISECONDS.sleep(1_300);
            proxy.swallow(false, false);
        }
        proxy.cut();
    }
}
