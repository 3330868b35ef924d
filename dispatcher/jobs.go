package dispatcher

import (
	"cmp"
	"context"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/events"
	"spendhook/events/operational"
	"spendhook/internal/pause"
)

// jobRetry is the delay of the next step after a step failed, and between two tries to note
// that a step has ended.
const jobRetry = time.Second

// The results of steps, values of the label of spendhook_job_steps_total.
const (
	stepContinued = "continued"
	stepCompleted = "completed"
	stepFailed    = "failed"
)

// restAfter returns how long a company's jobs rest after a step that took the given time. With
// it, a company cannot fill Redis and the CPU with jobs: its jobs run a quarter of the time.
func restAfter(step time.Duration) time.Duration { return min(3*step, time.Second) }

// runJob runs one step of a job, whose turn was under a token, when a place for jobs is free. It frees
// the place, rests, and then notes the end of the step: while that fails, the company gets no other job. After
// a crash the step runs again.
func (d *Dispatcher) runJob(ctx context.Context, token string, company, job uuid.UUID) {
	slots, step, counted := d.jobs, d.Redelivery.Step, true
	switch job {
	case operational.ForwardJob: // may wait for the shard of the operations company
		slots, step, counted = d.forwards, d.forward, false
	case operational.SummariseJob:
		slots, step, counted = d.forwards, d.summarise, false
	}
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return
	}
	began := d.opts.Now()
	var again time.Duration
	var err error
	ref := delivery.Ref{Ref: events.Ref{Company: company}} // the line below names the job
	panicked := d.contain("job step", ref, func() { again, err = step(ctx, company, job) })
	<-slots
	err = cmp.Or(panicked, err)
	if counted && ctx.Err() == nil {
		d.metrics.jobSteps.WithLabelValues(resultOf(again, err)).Inc()
	}
	if err != nil {
		again = jobRetry
		if ctx.Err() == nil {
			d.opts.Logger.Error("job step failed", "company_uuid", company, "job_uuid", job, "exception.message", err)
		}
	}
	pause.For(ctx, restAfter(d.opts.Now().Sub(began)))
	_ = pause.Until(ctx, jobRetry, func() error { // Stop requeues the job
		return d.Queue.EndJob(context.WithoutCancel(ctx), token, company, job, again)
	}, func(err error) {
		d.opts.Logger.Error("end of job step not noted, trying again", "job_uuid", job, "exception.message", err)
	})
}

func resultOf(again time.Duration, err error) string {
	switch {
	case err != nil:
		return stepFailed
	case again < 0:
		return stepCompleted
	}
	return stepContinued
}
