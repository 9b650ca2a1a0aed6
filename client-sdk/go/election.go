// Leader election: candidates and observers.

package leasehold

import (
	"context"
	"errors"
	"iter"
	"time"
)

// pollInterval is the average interval at which an observer reads the leader.
const pollInterval = time.Second

// Election elects one leader for a job: the holder of the lock with the job's name. Other candidates wait in the queue
// of that lock.
type Election struct {
	client  *Client
	job     string
	options []Option
}

// Elect returns the election of a leader for a job. The options apply to its campaigns; observers use only the
// namespace.
func (c *Client) Elect(job string, options ...Option) *Election {
	return &Election{c, job, options}
}

// Campaign waits without a time limit until this process is the leader. It is the leader while the lease is valid.
func (e *Election) Campaign(ctx context.Context) (*Lease, error) {
	options := append([]Option{WithWait(Forever)}, e.options...)
	return e.client.Lock(ctx, e.job, options...)
}

// Observe returns the current leader, then each new leader, and nil while there is no leader. The observer is not a
// candidate. The sequence ends with ctx, or after an error.
//
// Observe reads the leader about once a second, and continues while no broker answers. It may report a change late,
// and two quick changes as one. It is a hint: do not use it in place of a lock.
func (e *Election) Observe(ctx context.Context) iter.Seq2[*Holder, error] {
	return func(yield func(*Holder, error) bool) {
		notified, hasNotified := "", false
		for ctx.Err() == nil {
			leader, err := e.leader(ctx)
			switch {
			case ctx.Err() != nil:
				return
			case errors.Is(err, ErrUnavailable) || errors.Is(err, ErrStoreRecovering):
			case err != nil:
				yield(nil, err)
				return
			case !hasNotified || notified != leader.LeaseID:
				notified, hasNotified = leader.LeaseID, true
				if !yield(leaderOrNil(leader), nil) {
					return
				}
			}
			if sleepRandomly(ctx, pollInterval*3/4, pollInterval/2) != nil {
				return
			}
		}
	}
}

func (e *Election) leader(ctx context.Context) (Holder, error) {
	state, err := e.client.Get(ctx, e.job, e.options...)
	if err != nil || len(state.Holders) == 0 {
		return Holder{}, err
	}
	return state.Holders[0], nil
}

func leaderOrNil(leader Holder) *Holder {
	if leader.LeaseID == "" {
		return nil
	}
	return &leader
}
