package cardjobs

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"spendhook/storage"
)

// recoverPageSize is how many jobs are looked at in one query.
const recoverPageSize = 20

// recoverJobs walks the unfinished jobs, hands out again what the queue has
// lost of them, and counts what is left.
func (r *Runner) recoverJobs(ctx context.Context) error {
	unfinished, items := map[uuid.UUID]bool{}, 0
	for after := uuid.Nil; ; {
		jobs, err := r.opts.Store.UnfinishedJobs(ctx, after, recoverPageSize)
		if err != nil {
			return err
		}
		for i := range jobs {
			unfinished[jobs[i].UUID] = true
			items += len(jobs[i].Indexes)
		}
		if err := r.recoverPage(ctx, jobs); err != nil {
			return err
		}
		if len(jobs) < recoverPageSize {
			break
		}
		after = jobs[len(jobs)-1].UUID
	}
	r.metrics.unfinished.Set(float64(items))
	for job := range r.handedOut {
		if !unfinished[job] {
			delete(r.handedOut, job)
		}
	}
	return r.countFinished(ctx, unfinished)
}

// recoverPage hands out the items of jobs that were handed out before the
// oldest task in the queue and, since the queue is first in first out, have no
// task there. Should they have one all the same (its worker has just taken it,
// or another replica recovers them too), an item is done twice with one effect.
func (r *Runner) recoverPage(ctx context.Context, jobs []storage.UnfinishedJob) error {
	if len(jobs) == 0 {
		return nil
	}
	wait, err := r.opts.Queue.oldestWait()
	if err != nil {
		return err
	}
	now := r.opts.Now()
	lost := now.Add(-wait - r.opts.RecoverAfter)
	for _, job := range jobs {
		if !r.lastHandOut(job).Before(lost) {
			continue
		}
		if err := r.opts.Queue.enqueue(ctx, job.UUID, job.Indexes, now.Truncate(r.opts.RecoverAfter)); err != nil {
			return err
		}
		r.handedOut[job.UUID] = now
		r.metrics.recovered.Add(float64(len(job.Indexes)))
		r.opts.Logger.Warn("card items handed out again", "job_uuid", job.UUID, "items", len(job.Indexes))
	}
	return nil
}

func (r *Runner) lastHandOut(job storage.UnfinishedJob) time.Time {
	if at, again := r.handedOut[job.UUID]; again {
		return at
	}
	return job.CreatedAt
}

// countFinished counts the jobs that came to their end with an outcome that
// this replica was the first to publish, so that one replica counts each.
func (r *Runner) countFinished(ctx context.Context, unfinished map[uuid.UUID]bool) error {
	for id, mine := range r.published.except(unfinished) {
		job, err := r.opts.Store.CardJob(ctx, mine.company, id)
		if err != nil && !errors.Is(err, storage.ErrNotFound) {
			return err
		}
		if err == nil && job.Status != storage.JobCompleted {
			continue
		}
		r.published.forget(id, mine)
		if err == nil && lastOf(job.Items) == mine {
			r.metrics.completed(&job)
		}
	}
	return nil
}
