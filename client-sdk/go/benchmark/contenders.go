package main

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"leasehold.dev/sdk"
	"leasehold.dev/sdk/internal/testbed"
)

const (
	ttl      = 10 * time.Second
	patience = 60 * time.Second
	// retry is that of the examples of redislock.
	retry = 100 * time.Millisecond
)

// contender is one way to take locks. What take returns gives the lock back.
type contender struct {
	name string
	take func(ctx context.Context, name string) (giveBack func() error, err error)
}

// contenders are all that are compared, and how they end.
func contenders(broker *testbed.Broker, store *testbed.Redis) ([]contender, func(), error) {
	client, err := leasehold.New(broker.URL())
	if err != nil {
		return nil, nil, err
	}
	if err := client.Connect(context.Background()); err != nil {
		return nil, nil, err
	}
	plain := redis.NewClient(&redis.Options{Addr: store.Addr, PoolSize: 256})
	sync, locker := redsync.New(goredis.NewPool(plain)), redislock.New(plain)
	all := []contender{
		{"leasehold", func(ctx context.Context, name string) (func() error, error) {
			lease, err := client.Lock(ctx, name, leasehold.WithTTL(ttl), leasehold.WithWait(patience))
			if err != nil {
				return nil, err
			}
			return func() error { return lease.Release(ctx) }, nil
		}},
		{"redsync", func(ctx context.Context, name string) (func() error, error) {
			// With the pauses of its own; only its patience is that of the others.
			mutex := sync.NewMutex(name, redsync.WithExpiry(ttl), redsync.WithTries(1_000_000))
			limited, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			if err := mutex.LockContext(limited); err != nil {
				return nil, err
			}
			return func() error {
				_, err := mutex.UnlockContext(ctx)
				return err
			}, nil
		}},
		{"redislock", func(ctx context.Context, name string) (func() error, error) {
			limited, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			options := &redislock.Options{RetryStrategy: redislock.LinearBackoff(retry)}
			lock, err := locker.Obtain(limited, name+"/redislock", ttl, options)
			if err != nil {
				return nil, err
			}
			return func() error { return lock.Release(ctx) }, nil
		}},
	}
	end := func() {
		// The processes behind them are killed next.
		_ = client.Close()
		_ = plain.Close()
	}
	return all, end, nil
}
