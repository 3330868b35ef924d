package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/google/uuid"

	"spendhook/api/client"
)

type emitCmd struct {
	clientFlags

	Source       string        `arg:"" optional:"" help:"NDJSON file with one event record a line, '-' for standard input. Without it, one event is made of the flags."`
	Type         string        `help:"Event type, such as PAYMENT_PAID."`
	Company      *uuid.UUID    `help:"Company, when the token does not carry one."`
	ID           string        `name:"id" help:"Event id; sending the same id again is safe (default: a fresh UUID)."`
	Timestamp    time.Time     `help:"When it happened, RFC 3339 (default: now)."`
	Metadata     string        `xor:"metadata" help:"Metadata, a JSON object."`
	MetadataFile string        `xor:"metadata" type:"existingfile" help:"File holding the metadata."`
	ErrorCode    string        `help:"Error code the event carries."`
	ErrorMessage string        `help:"Error message the event carries."`
	RetryFor     time.Duration `default:"1m" help:"How long to keep trying while the daemon is away or asks for patience."`
}

// Run sends the event of the flags, or every line of the source, and fails
// when any of them was refused.
func (c *emitCmd) Run(ctx context.Context, term *console) error {
	api, err := c.client(func(o *client.Options) { o.RetryFor = cmp.Or(c.RetryFor, -1) })
	if err != nil {
		return err
	}
	e := &emitter{api: api, err: term.err}
	if c.Source == "" {
		return c.one(ctx, e, term)
	}
	if c.Type != "" || c.ID != "" || c.Metadata != "" || c.MetadataFile != "" {
		return usageError("give either an NDJSON source or the flags of one event, not both")
	}
	return c.stream(ctx, e, term)
}

func (c *emitCmd) one(ctx context.Context, e *emitter, term *console) error {
	record, err := c.record()
	if err != nil {
		return err
	}
	body, err := json.Marshal(record)
	if err != nil {
		return usageError("--metadata is not valid JSON: " + err.Error())
	}
	if err := e.send(ctx, []line{{text: body}}); err != nil {
		return err
	}
	if e.refused > 0 {
		return errors.New("the event was refused")
	}
	_, err = fmt.Fprintf(term.out, "%s %s\n", record.ID, e.outcome())
	return err
}

func (c *emitCmd) record() (client.EventInput, error) {
	if c.Type == "" {
		return client.EventInput{}, usageError("--type is needed (or an NDJSON source; see --help)")
	}
	happened := c.Timestamp
	if happened.IsZero() {
		happened = time.Now()
	}
	r := client.EventInput{
		ID: cmp.Or(c.ID, uuid.NewString()), CompanyUUID: c.Company, Event: c.Type,
		Timestamp: happened.UTC().Truncate(time.Millisecond),
		Metadata:  []byte(cmp.Or(c.Metadata, "{}")), ErrorCode: given(c.ErrorCode), ErrorMessage: given(c.ErrorMessage),
	}
	if c.MetadataFile == "" {
		return r, nil
	}
	data, err := os.ReadFile(c.MetadataFile)
	r.Metadata = data
	return r, err
}

func (c *emitCmd) stream(ctx context.Context, e *emitter, term *console) error {
	in, size, closeSource, err := openSource(c.Source, term.in)
	if err != nil {
		return err
	}
	defer closeSource()
	bar := newProgress(term.err, "events", size)
	defer bar.finish()
	lines := newLineReader(in)
	for {
		batch, err := lines.next()
		for _, bad := range lines.bad {
			e.refuse(bad.number, "not a JSON object: "+string(bad.text))
		}
		if err := e.send(ctx, batch); err != nil {
			return err
		}
		bar.update(int64(e.total()), lines.read)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	bar.finish()
	return e.summary(term.out)
}

// openSource opens a file or standard input; size is 0 when it is unknown.
func openSource(name string, stdin io.Reader) (in io.Reader, size int64, closeIt func(), err error) {
	if name == "-" {
		return stdin, fileSize(stdin), func() {}, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, 0, nil, err
	}
	return f, fileSize(f), func() { _ = f.Close() }, nil
}

func fileSize(in io.Reader) int64 {
	f, ok := in.(*os.File)
	if !ok {
		return 0
	}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return 0
	}
	return info.Size()
}
