package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/internal/pause"
)

type replayCmd struct {
	clientFlags

	Event      string     `xor:"what" required:"" help:"Event to deliver to all its subscribers again."`
	Delivery   string     `xor:"what" required:"" help:"Delivery to attempt again."`
	Subscriber *uuid.UUID `xor:"what" required:"" help:"Subscriber to which everything it missed is delivered."`
	Since      time.Time  `help:"With --subscriber: events accepted from here on, RFC 3339."`
	Until      time.Time  `help:"With --subscriber: and up to here (default: now)."`
	DryRun     bool       `help:"With --subscriber: only count."`
	Wait       bool       `help:"With --subscriber: show the progress until it is done."`
	Company    *uuid.UUID `help:"Company, when the token does not carry one."`
}

// Run asks for the deliveries and prints what was scheduled.
func (c *replayCmd) Run(ctx context.Context, term *console) error {
	api, err := c.client()
	if err != nil {
		return err
	}
	switch {
	case c.Event != "":
		return c.event(ctx, api, term.out)
	case c.Delivery != "":
		return c.delivery(ctx, api, term.out)
	case c.Since.IsZero():
		return usageError("--subscriber needs --since")
	}
	return c.recover(ctx, api, term)
}

func (c *replayCmd) event(ctx context.Context, api *client, out io.Writer) error {
	var answer gen.EventDeliveries
	path := c.path("/api/v1/events/" + url.PathEscape(c.Event) + "/replay")
	if err := api.call(ctx, http.MethodPost, path, nil, &answer); err != nil {
		return err
	}
	for _, d := range answer.Content {
		fmt.Fprintf(out, "%s %s\n", d.ID, d.Status)
	}
	if len(answer.Content) == 0 {
		return errors.New("no subscriber wants this event")
	}
	return nil
}

func (c *replayCmd) delivery(ctx context.Context, api *client, out io.Writer) error {
	var answer gen.Delivery
	path := c.path("/api/v1/deliveries/" + url.PathEscape(c.Delivery) + "/retry")
	if err := api.call(ctx, http.MethodPost, path, nil, &answer); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "%s %s\n", answer.ID, answer.Status)
	return err
}

func (c *replayCmd) recover(ctx context.Context, api *client, term *console) error {
	request := gen.RecoverRequest{Since: c.Since, DryRun: &c.DryRun}
	if !c.Until.IsZero() {
		request.Until = &c.Until
	}
	var job gen.Job
	base := "/api/v1/subscribers/" + c.Subscriber.String() + "/recover"
	if err := api.call(ctx, http.MethodPost, c.path(base), request, &job); err != nil {
		return err
	}
	if c.Wait {
		watched, err := watch(ctx, api, c.path("/api/v1/jobs/"+job.UUID.String()), term.err)
		if err != nil {
			return err
		}
		job = watched
	}
	_, err := fmt.Fprintf(term.out, "job %s %s: %s\n", job.UUID, job.Status, jobCounts(job))
	return err
}

func jobCounts(job gen.Job) string {
	verb := "redelivered"
	if job.DryRun {
		verb = "to redeliver"
	}
	return fmt.Sprintf("%d examined, %d %s", job.Examined, job.Redelivered, verb)
}

// watch polls a job until it is completed, drawing its counts on a terminal.
func watch(ctx context.Context, api *client, path string, screen io.Writer) (gen.Job, error) {
	draw := isTerminal(screen)
	for {
		var job gen.Job
		if err := api.call(ctx, http.MethodGet, path, nil, &job); err != nil {
			return job, err
		}
		if draw {
			fmt.Fprintf(screen, "\r\x1b[K%s", jobCounts(job))
		}
		if job.FinishedAt != nil {
			if draw {
				fmt.Fprint(screen, "\r\x1b[K")
			}
			return job, nil
		}
		if !pause.For(ctx, 300*time.Millisecond) {
			return job, ctx.Err()
		}
	}
}

// path adds the company of the flags, for tokens that carry none.
func (c *replayCmd) path(path string) string { return withCompany(path, c.Company) }

func withCompany(path string, company *uuid.UUID) string {
	if company == nil {
		return path
	}
	return path + "?companyUuid=" + company.String()
}
