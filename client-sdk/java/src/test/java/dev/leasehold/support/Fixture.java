package dev.leasehold.support;

import dev.leasehold.LeaseholdClient;
import dev.leasehold.testing.FakeBroker;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;

/** A test fixture: a real broker or the fake one, with its clients. */
public abstract class Fixture implements AutoCloseable {
    /** Kind of the broker. */
    public enum BrokerKind {
        REAL,
        FAKE;

        public Fixture createFixture() throws InterruptedException {
            return this == REAL ? new Real() : new Fake();
        }
    }

    private final List<LeaseholdClient> clients = new ArrayList<>();

    /** Creates another client, which is closed with this fixture. */
    public LeaseholdClient client(String owner) {
        LeaseholdClient client = createClient(owner);
        clients.add(client);
        return client;
    }

    abstract LeaseholdClient createClient(String owner);

    abstract void closeBroker();

    @Override
    public void close() throws IOException {
        clients.forEach(LeaseholdClient::close);
        closeBroker();
    }

    private static final class Real extends Fixture {
        private final Broker broker = Broker.start();

        Real() throws InterruptedException {}

        @Override
        LeaseholdClient createClient(String owner) {
            return LeaseholdClient.builder(broker.url()).owner(owner).build();
        }

        @Override
        void closeBroker() {
            broker.close();
        }
    }

    private static final class Fake extends Fixture {
        private final FakeBroker broker = new FakeBroker();

        @Override
        LeaseholdClient createClient(String owner) {
            return broker.client(owner);
        }

        @Override
        void closeBroker() {
            broker.close();
        }
    }
}
