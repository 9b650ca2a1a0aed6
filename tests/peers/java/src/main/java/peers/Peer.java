package peers;

import java.util.function.Function;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** A lock system. */
interface Peer {
    /** A lock as one caller uses it. */
    interface Lock {
        void lock() throws Exception;

        void unlock() throws Exception;
    }

    Lock lock(String name);

    static Peer open(String system, String endpoint) throws Exception {
        return switch (system) {
            case "redisson" -> redisson(endpoint, client -> client::getLock);
            case "redisson-fair" -> redisson(endpoint, client -> client::getFairLock);
            case "curator" -> curator(endpoint);
            default -> throw new IllegalArgumentException("no such system: " + system);
        };
    }

    /**
     * Opens Redisson. Its watchdog renews locks with the TTL of the other systems, and there are enough connections
     * that no caller waits for one.
     */
    private static Peer redisson(String endpoint, Function<RedissonClient, Function<String, RLock>> kind) {
        Config config = new Config();
        config.setLockWatchdogTimeout(10_000);
        config.useSingleServer()
                .setAddress("redis://" + endpoint)
                .setConnectionPoolSize(256)
                .setConnectionMinimumIdleSize(64)
                .setSubscriptionConnectionPoolSize(128)
                .setSubscriptionsPerConnection(200);
        RedissonClient client = Redisson.create(config);
        Function<String, RLock> locks = kind.apply(client);
        return name -> {
            RLock lock = locks.apply(name);
            return new Lock() {
                @Override
                public void lock() {
                    lock.lock();
                }

                @Override
                public void unlock() {
                    lock.unlock();
                }
            };
        };
    }

    private static Peer curator(String endpoint) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(endpoint, 10_000, 5_000, new RetryOneTime(1_000));
        client.start();
        client.blockUntilConnected();
        return name -> {
            InterProcessMutex mutex = new InterProcessMutex(client, "/" + name);
            return new Lock() {
                @Override
                public void lock() throws Exception {
                    mutex.acquire();
                }

                @Override
                public void unlock() throws Exception {
                    mutex.release();
                }
            };
        };
    }
}
