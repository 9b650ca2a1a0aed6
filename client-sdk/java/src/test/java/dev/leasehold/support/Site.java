package dev.leasehold.support;

import dev.leasehold.LeaseholdClient;
import dev.leasehold.testing.FakeBroker;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;

/** A real broker or the fake, with its clients. */
public abstract class Site implements AutoCloseable {
    /** Which. */
    public enum Kind {
        REAL,
        FAKE;

        public Site open() throws InterruptedException {
            return this == REAL ? new Real() : new Fake();
        }
    }

    private final List<LeaseholdClient> clients = new ArrayList<>();

    /** One more client. */
    public LeaseholdClient client(String owner) {
        LeaseholdClient client = make(owner);
        clients.add(client);
        return client;
    }

    abstract LeaseholdClient make(String owner);

    abstract void end();

    @Override
    public void close() throws IOException {
        clients.forEach(LeaseholdClient::close);
        end();
    }

    private static final class Real extends Site {
        private final Broker broker = Broker.start();

        Real() throws InterruptedException {}

        @Override
        LeaseholdClient make(String owner) {
            return LeaseholdClient.builder(broker.url()).owner(owner).build();
        }

        @Override
        void end() {
            broker.close();
        }
    }

    private static final class Fake extends Site {
        private final FakeBroker broker = new FakeBroker();

        @Override
        LeaseholdClient make(String owner) {
            return broker.client(owner);
        }

        @Override
        void end() {
            broker.close();
        }
    }
}
