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
	ttl         = 10 * time.Second
	waitTimeout = 60 * time.Second
	// retry is the retry interval of the examples of redislock.
	retry = 100 * time.Millisecond
)

// contender is a lock implementation to measure. acquire acquires a lock and returns a function that releases it.
type contender struct {
	name    string
	acquire func(ctx context.Context, name string) (release func() error, err error)
}

// contenders returns all implementations to compare, and a function that closes them.
func contenders(broker *testbed.Broker, store *testbed.Redis) ([]contender, func(), error) {
	client, err := leasehold.New(broker.URL())
	if err != nil {
		return nil, nil, err
	}
	if err := client.Connect(context.Background()); err != nil {
		return nil, nil, err
	}
	redisClient := redis.NewClient(&redis.Options{Addr: store.Addr, PoolSize: 256})
	sync, locker := redsync.New(goredis.NewPool(redisClient)), redislock.New(redisClient)
	all := []contender{
		{"leasehold", func(ctx context.Context, name string) (func() error, error) {
			lease, err := client.Lock(ctx, name, leasehold.WithTTL(ttl), leasehold.WithWait(waitTimeout))
			if err != nil {
				return nil, err
			}
			return func() error { return lease.Release(ctx) }, nil
		}},
		{"redsync", func(ctx context.Context, name string) (func() error, error) {
			// The retry pauses are the defaults of redsync; only the time limit is that of the other contenders.
			mutex := sync.NewMutex(name, redsync.WithExpiry(ttl), redsync.WithTries(1_000_000))
			limitedCtx, cancel := context.WithTimeout(ctx, waitTimeout)
			defer cancel()
			if err := mutex.LockContext(limitedCtx); err != nil {
				return nil, err
			}
			return func() error {
				_, err := mutex.UnlockContext(ctx)
				return err
			}, nil
		}},
		{"redislock", func(ctx context.Context, name string) (func() error, error) {
			limitedCtx, cancel := context.WithTimeout(ctx, waitTimeout)
			defer cancel()
			options := &redislock.Options{RetryStrategy: redislock.LinearBackoff(retry)}
			lock, err := locker.Obtain(limitedCtx, name+"/redislock", ttl, options)
			if err != nil {
				return nil, err
			}
			return func() error { return lock.Release(ctx) }, nil
		}},
	}
	closeAll := func() {
		// The processes behind the clients are killed next.
		_ = client.Close()
		_ = redisClient.Close()
	}
	return all, closeAll, nil
}
