package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"

	"spendhook/api/client"
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

func (c *replayCmd) event(ctx context.Context, api *client.ClientWithResponses, out io.Writer) error {
	answer, err := api.ReplayEventWithResponse(ctx, c.Event, &client.ReplayEventParams{CompanyUUID: c.Company}, client.ReplayRequest{})
	if err != nil {
		return err
	}
	for _, d := range answer.JSON202.Content {
		fmt.Fprintf(out, "%s %s\n", d.ID, d.Status)
	}
	if len(answer.JSON202.Content) == 0 {
		return errors.New("no subscriber wants this event")
	}
	return nil
}

func (c *replayCmd) delivery(ctx context.Context, api *client.ClientWithResponses, out io.Writer) error {
	answer, err := api.RetryDeliveryWithResponse(ctx, c.Delivery, &client.RetryDeliveryParams{CompanyUUID: c.Company})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s %s\n", answer.JSON202.ID, answer.JSON202.Status)
	return err
}

func (c *replayCmd) recover(ctx context.Context, api *client.ClientWithResponses, term *console) error {
	request := client.RecoverRequest{Since: c.Since, DryRun: &c.DryRun}
	if !c.Until.IsZero() {
		request.Until = &c.Until
	}
	answer, err := api.RecoverSubscriberWithResponse(ctx, *c.Subscriber, &client.RecoverSubscriberParams{CompanyUUID: c.Company}, request)
	if err != nil {
		return err
	}
	job := *answer.JSON202
	if c.Wait {
		if job, err = c.watch(ctx, api, job, term.err); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(term.out, "job %s %s: %s\n", job.UUID, job.Status, jobCounts(job))
	return err
}

func jobCounts(job client.Job) string {
	verb := "redelivered"
	if job.DryRun {
		verb = "to redeliver"
	}
	return fmt.Sprintf("%d examined, %d %s", job.Examined, job.Redelivered, verb)
}

// watch polls a job until it is completed, drawing its counts on a terminal.
func (c *replayCmd) watch(ctx context.Context, api *client.ClientWithResponses, job client.Job, screen io.Writer) (client.Job, error) {
	draw := isTerminal(screen)
	for job.FinishedAt == nil {
		if draw {
			fmt.Fprintf(screen, "\r\x1b[K%s", jobCounts(job))
		}
		if !pause.For(ctx, 300*time.Millisecond) {
			return job, ctx.Err()
		}
		answer, err := api.GetJobWithResponse(ctx, job.UUID, &client.GetJobParams{CompanyUUID: c.Company})
		if err != nil {
			return job, err
		}
		job = *answer.JSON200
	}
	if draw {
		fmt.Fprint(screen, "\r\x1b[K")
	}
	return job, nil
}
