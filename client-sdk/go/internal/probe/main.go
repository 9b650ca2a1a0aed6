// Probe runs the scenarios of the suite with the Go client. Each line of input is a JSON command, and each line of
// output is a JSON response or event. The protocol is in tests/suite/README.md.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"google.golang.org/grpc/grpclog"

	"leasehold.dev/sdk"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

func run() error {
	if err := offsetClock(os.Getenv("LEASEHOLD_TEST_BOOTTIME_AHEAD")); err != nil {
		return err
	}
	setLog(os.Getenv("LEASEHOLD_LOG"))
	client, err := connect()
	if err != nil {
		writeLine(event{Event: "failed", AtMs: nowMs(), Error: failureOf(err)})
		os.Exit(1)
	}
	writeLine(event{Event: "ready", AtMs: nowMs()})
	p := newProbe(client)
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			// A Go program has no exit hook.
			return client.Close()
		}
		if err != nil {
			return err
		}
		var c command
		if err := json.Unmarshal(line, &c); err != nil {
			return err
		}
		if err := p.run(c); err != nil {
			return err
		}
	}
}

func setLog(level string) {
	switch level {
	case "trace":
		grpclog.SetLoggerV2(grpclog.NewLoggerV2WithVerbosity(os.Stderr, os.Stderr, os.Stderr, 99))
		slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.Level(-100)})))
	case "debug":
		slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})))
	}
}

// connect creates a client with the settings of the environment.
func connect() (*leasehold.Client, error) {
	var options []leasehold.ClientOption
	if owner, ok := os.LookupEnv("LEASEHOLD_OWNER"); ok {
		options = append(options, leasehold.WithOwner(owner))
	}
	if token, ok := os.LookupEnv("LEASEHOLD_BEARER_TOKEN"); ok {
		options = append(options, leasehold.WithBearerToken(token))
	}
	if path, ok := os.LookupEnv("LEASEHOLD_BEARER_TOKEN_FILE"); ok {
		options = append(options, leasehold.WithBearerTokenFile(path))
	}
	if os.Getenv("LEASEHOLD_ALLOW_INSECURE_TOKEN") != "" {
		options = append(options, leasehold.WithAllowInsecureToken())
	}
	if ca, ok := os.LookupEnv("LEASEHOLD_TLS_CA"); ok {
		config, err := tlsConfig(ca)
		if err != nil {
			return nil, err
		}
		options = append(options, leasehold.WithTLS(config))
	}
	client, err := leasehold.New(os.Getenv("LEASEHOLD_ENDPOINTS"), options...)
	if err != nil {
		return nil, err
	}
	return client, client.Connect(context.Background())
}

func tlsConfig(caPath string) (*tls.Config, error) {
	pem, err := os.ReadFile(caPath)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(pem)
	if cert, ok := os.LookupEnv("LEASEHOLD_TLS_CERT"); ok {
		certificate, err := tls.LoadX509KeyPair(cert, os.Getenv("LEASEHOLD_TLS_KEY"))
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{certificate}
	}
	return config, nil
}
