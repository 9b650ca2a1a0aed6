package dev.leasehold.probe;

import java.util.logging.ConsoleHandler;
import java.util.logging.Handler;
import java.util.logging.Level;
import java.util.logging.LogRecord;
import java.util.logging.Logger;

/** Exits the probe on an internal error of the client, and prints the log. */
final class FaultHandler {
    /** The reference prevents the collection of the logger. */
    private static final Logger CLIENT = Logger.getLogger("dev.leasehold");

    private FaultHandler() {}

    static void install(String level) {
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> exit(error));
        Logger root = Logger.getLogger("");
        for (Handler handler : root.getHandlers()) {
            root.removeHandler(handler);
        }
        if (level != null) {
            ConsoleHandler console = new ConsoleHandler();
            console.setLevel(Level.ALL);
            root.addHandler(console);
            root.setLevel("trace".equals(level) ? Level.ALL : Level.INFO);
            CLIENT.setLevel("trace".equals(level) ? null : Level.FINE);
        }
        // The client logs its internal errors, and continues.
        CLIENT.addHandler(new ExitingHandler());
    }

    static void exit(Throwable error) {
        error.printStackTrace();
        Runtime.getRuntime().halt(101);
    }

    private static final class ExitingHandler extends Handler {
        @Override
        public void publish(LogRecord entry) {
            if (entry.getLevel().intValue() >= Level.SEVERE.intValue()) {
                exit(entry.getThrown() == null ? new IllegalStateException(entry.getMessage()) : entry.getThrown());
            }
        }

        @Override
        public void flush() {}

        @Override
        public void close() {}
    }
}
