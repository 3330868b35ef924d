package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"text/tabwriter"

	"spendhook/audit"
	"spendhook/config"
	"spendhook/dispatcher/workqueue/storedformat"
	"spendhook/internal/datadir"
	"spendhook/internal/partition"
	"spendhook/internal/redisx"
)

// formatCmd has the commands for the stored format, which all running releases must read.
type formatCmd struct {
	Show  formatShowCmd  `cmd:"" default:"withargs" help:"Show the version of the stored format, and the versions that each replica reads." example:"spendhook format show"`
	Raise formatRaiseCmd `cmd:"" help:"Raise the stored format to the newest version of this release. Every replica must read it already." example:"spendhook format raise --dry-run"`
}

// formatFlags are the flags of the commands that need Redis alone.
type formatFlags struct {
	configFlags

	Redis string `placeholder:"URL" help:"'embedded', or the URL of the daemon's Redis."`
}

// open connects to the Redis of the daemon, which may run.
func (f formatFlags) open(ctx context.Context) (*config.Config, *redisx.Redis, error) {
	cfg, err := f.loadWith(map[string]string{"redis": f.Redis})
	if err != nil {
		return nil, nil, err
	}
	r, err := redisx.Open(ctx, attachOptions(cfg))
	return cfg, r, err
}

type formatShowCmd struct {
	formatFlags
}

// Run prints how many partitions have which format, and the living replicas.
func (c *formatShowCmd) Run(ctx context.Context, term *stdio) error {
	_, r, err := c.open(ctx)
	if err != nil {
		return err
	}
	formats, err := storedformat.Read(ctx, r.Client())
	if err == nil {
		err = printFormats(term.Out, formats)
	}
	return errors.Join(err, r.Close())
}

func printFormats(out io.Writer, formats storedformat.Formats) error {
	counts := make(map[int]int)
	for _, format := range formats.Partitions {
		counts[format]++
	}
	for _, format := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(out, "%d partitions have format %d\n", counts[format], format)
	}
	fmt.Fprintf(out, "this build reads %s\n", formatRange(partition.OldestFormat, partition.NewestFormat()))
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, r := range formats.Readers {
		fmt.Fprintf(w, "replica %s\treads %s\n", r.Replica, formatRange(r.Oldest, r.Newest))
	}
	return w.Flush()
}

func formatRange(oldest, newest int) string {
	if oldest == newest {
		return strconv.Itoa(oldest)
	}
	return fmt.Sprintf("%d to %d", oldest, newest)
}

type formatRaiseCmd struct {
	formatFlags

	DryRun bool `help:"Print what would be done, and do nothing."`
}

// Run raises every partition. The daemons may run. After an interruption it can be run again.
func (c *formatRaiseCmd) Run(ctx context.Context, term *stdio) error {
	cfg, r, err := c.open(ctx)
	if err != nil {
		return err
	}
	if err := datadir.Check(cfg.DataDir); err != nil { // the change is recorded there
		return errors.Join(err, r.Close())
	}
	to := partition.NewestFormat()
	if c.DryRun {
		return errors.Join(preview(ctx, term.Out, r, to), r.Close())
	}
	raised, err := storedformat.Raise(ctx, r.Client(), to)
	fmt.Fprintf(term.Out, "raised %d of %d partitions to format %d\n", raised, partition.Count, to)
	err = errors.Join(err, r.Close())
	if raised > 0 {
		e := audit.Entry{Action: "format.raise", Target: audit.Target{Kind: "stored_format", IDs: []string{strconv.Itoa(to)}}}
		if err != nil {
			e.Outcome = audit.Unknown
		}
		err = errors.Join(err, recordChange(ctx, cfg, term.Err, e))
	}
	return err
}

// preview prints the formats, or returns an error if a replica does not read the new one.
func preview(ctx context.Context, out io.Writer, r *redisx.Redis, to int) error {
	formats, err := storedformat.Read(ctx, r.Client())
	if err != nil {
		return err
	}
	for _, reader := range formats.Readers {
		if !reader.Reads(to) {
			return fmt.Errorf("%w: %s", storedformat.ErrOldReplica, reader.Replica)
		}
	}
	fmt.Fprintf(out, "all partitions are to be raised to format %d\n", to)
	return printFormats(out, formats)
}
