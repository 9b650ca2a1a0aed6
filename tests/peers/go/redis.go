package main

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// ttl is the TTL of a lock, equal to Leasehold's default.
const ttl = 10 * time.Second

// client returns a client with enough connections that no caller waits for one.
func client(endpoint string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: endpoint, PoolSize: 256, MinIdleConns: 64, Protocol: 3})
}

type redsyncLocker struct {
	of    *redsync.Redsync
	mutex *redsync.Mutex
}

// withRedsync opens callers of redsync, which wait without limit and retry after 50 to 250 ms, its default.
func withRedsync(endpoint string) opener {
	of := redsync.New(goredis.NewPool(client(endpoint)))
	return func(int) (locker, error) { return &redsyncLocker{of: of}, nil }
}

func (l *redsyncLocker) lock(ctx context.Context, name string) error {
	l.mutex = l.of.NewMutex(name, redsync.WithExpiry(ttl), redsync.WithTries(1<<30))
	return l.mutex.LockContext(ctx)
}

func (l *redsyncLocker) unlock(ctx context.Context) error {
	_, err := l.mutex.UnlockContext(ctx)
	return err
}

type redislockLocker struct {
	of   *redislock.Client
	held *redislock.Lock
}

// withRedislock opens callers of redislock, which retry every 100 ms, as in its documentation.
func withRedislock(endpoint string) opener {
	of := redislock.New(client(endpoint))
	return func(int) (locker, error) { return &redislockLocker{of: of}, nil }
}

func (l *redislockLocker) lock(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	retry := redislock.LinearBackoff(100 * time.Millisecond)
	held, err := l.of.Obtain(ctx, name, ttl, &redislock.Options{RetryStrategy: retry})
	l.held = held
	return err
}

func (l *redislockLocker) unlock(ctx context.Context) error {
	return l.held.Release(ctx)
}
