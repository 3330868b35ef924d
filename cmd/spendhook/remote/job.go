package remote

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/google/uuid"

	"spendhook/api/client"
)

type jobCmd struct {
	group

	List   jobListCmd   `cmd:"" help:"List the jobs of a company, the newest first." example:"spendhook job list --status RUNNING"`
	Cancel jobCancelCmd `cmd:"" help:"Cancel a job. Finished work is kept." example:"spendhook job cancel c1a7f0de-5b7c-4c0a-9a45-1d2e3f405162 --yes"`
	Get    jobGetCmd    `cmd:"" help:"Show a job." example:"spendhook job get c1a7f0de-5b7c-4c0a-9a45-1d2e3f405162"`
	Wait   jobWaitCmd   `cmd:"" help:"Show the progress of a job until it ends." example:"spendhook job wait c1a7f0de-5b7c-4c0a-9a45-1d2e3f405162"`
}

// oneJob is the argument of a command about one job.
type oneJob struct {
	UUID  uuid.UUID `arg:"" name:"uuid" predictor:"job" help:"UUID of the job."`
	Cards bool      `help:"The job is a bulk creation of cards."`
}

// readJob requests the current state of a job.
type readJob func(ctx context.Context) (*http.Response, error)

func (j oneJob) readJob(s *session) readJob {
	if j.Cards {
		return cardJob(s, j.UUID)
	}
	return deliveryJob(s, j.UUID)
}

func deliveryJob(s *session, job uuid.UUID) readJob {
	return func(ctx context.Context) (*http.Response, error) {
		return s.GetJob(ctx, job, fields[client.GetJobParams](s))
	}
}

func cardJob(s *session, job uuid.UUID) readJob {
	return func(ctx context.Context) (*http.Response, error) {
		return s.GetCardJob(ctx, job, fields[client.GetCardJobParams](s))
	}
}

// printJob prints the job that an operation has started. With wait, it shows the progress until the
// job ends.
func (s *session) printJob(ctx context.Context, wait bool, of func(*session, uuid.UUID) readJob, resp *http.Response, err error) error {
	text, err := readBody(resp, err)
	if err != nil {
		return err
	}
	var job struct {
		UUID       uuid.UUID  `json:"uuid"`
		FinishedAt *time.Time `json:"finishedAt"`
	}
	if err := json.Unmarshal(text, &job); err != nil {
		return err
	}
	if wait && job.FinishedAt == nil {
		return s.await(ctx, of(s, job.UUID))
	}
	return s.output.print(s.term.Out, text)
}

// await shows a job until the job ends. It returns an error if cards of the job were not created.
func (s *session) await(ctx context.Context, read readJob) error {
	failed := ""
	err := s.watch(ctx, func(out io.Writer) (state string, ended bool, err error) {
		text, err := readBody(read(ctx))
		if err != nil {
			return "", false, err
		}
		whole, err := parse(text)
		if err != nil {
			return "", false, err
		}
		failed = whole.at("failed")
		return string(text), whole.at("finishedAt") != "", s.output.print(out, text)
	})
	if err == nil && failed != "" && failed != "0" { // only bulk creations of cards have this field
		return fmt.Errorf("%s cards were not created; the items of the job have the reasons", failed)
	}
	return err
}

type jobGetCmd struct{ oneJob }

// Run shows the job.
func (c *jobGetCmd) Run(ctx context.Context, s *session) error {
	return s.show(c.readJob(s)(ctx))
}

type jobWaitCmd struct{ oneJob }

// Run shows the job until the job ends.
func (c *jobWaitCmd) Run(ctx context.Context, s *session) error {
	return s.await(ctx, c.readJob(s))
}

type jobListCmd struct {
	listFlags
	SubscriberUUID *uuid.UUID `name:"subscriber-uuid" help:"Only jobs of this subscriber."`
	Kind           []string   `help:"RETRY, CANCEL, RECOVER, DROP or ERASE; may repeat."`
	Status         []string   `help:"QUEUED, RUNNING, COMPLETED or CANCELLED; may repeat."`
}

// Run lists the jobs.
func (c *jobListCmd) Run(ctx context.Context, s *session) error {
	t := table{
		{"UUID", "uuid"},
		{"KIND", "kind"},
		{"STATUS", "status"},
		{"SUBSCRIBER", "subscriberUuid"},
		{"EXAMINED", "examined"},
		{"CHANGED", "changed"},
		{"CREATED", "createdAt"},
		{"FINISHED", "finishedAt"},
	}
	return s.list(ctx, c.listFlags, t, pages(s, s.ListJobs, *c))
}

type jobCancelCmd struct {
	confirmation
	UUID uuid.UUID `arg:"" name:"uuid" predictor:"job" help:"UUID of the job."`
}

// Run cancels the job.
func (c *jobCancelCmd) Run(ctx context.Context, s *session) error {
	if err := s.confirm(c.confirmation, "Cancel job %s?", c.UUID); err != nil {
		return err
	}
	return s.show(s.CancelJob(ctx, c.UUID, fields[client.CancelJobParams](s)))
}
