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
	"spendhook/dispatcher/workqueue/storedformat"
	"spendhook/internal/datadir"
	"spendhook/internal/partition"
	"spendhook/internal/redisx"
)

// formatCmd shows or raises the version of the stored format, which all running releases must read.
type formatCmd struct {
	configFlags

	Action string `arg:"" optional:"" enum:"show,raise" default:"show" help:"'show' prints the version of the stored format, and the versions that each replica reads. 'raise' raises it to the newest version of this release; every replica must read that already."`
	DryRun bool   `help:"With raise: print the versions, fail if a replica prevents the raise, and change nothing."`
}

// Run works while daemons run. After an interruption, raise can be run again.
func (c *formatCmd) Run(ctx context.Context, term *stdio) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	r, err := redisx.Open(ctx, attachOptions(cfg))
	if err != nil {
		return err
	}
	if c.Action == "raise" && !c.DryRun {
		err = c.raise(ctx, term, cfg.DataDir, r)
	} else {
		err = c.show(ctx, term.Out, r)
	}
	return errors.Join(err, r.Close())
}

// show prints the number of partitions of each format, and the running replicas.
func (c *formatCmd) show(ctx context.Context, out io.Writer, r *redisx.Redis) error {
	formats, err := storedformat.Read(ctx, r.Client())
	if err != nil {
		return err
	}
	counts := make(map[int]int)
	for _, format := range formats.Partitions {
		counts[format]++
	}
	for _, format := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(out, "%d partitions have format %d\n", counts[format], format)
	}
	fmt.Fprintf(out, "this build reads %s\n", formatRange(partition.OldestFormat, partition.NewestFormat()))
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, reader := range formats.Readers {
		fmt.Fprintf(w, "replica %s\treads %s\n", reader.Replica, formatRange(reader.Oldest, reader.Newest))
		if c.DryRun && !reader.Reads(partition.NewestFormat()) {
			err = fmt.Errorf("%w: %s", storedformat.ErrOldReplica, reader.Replica)
		}
	}
	return errors.Join(err, w.Flush())
}

func formatRange(oldest, newest int) string {
	if oldest == newest {
		return strconv.Itoa(oldest)
	}
	return fmt.Sprintf("%d to %d", oldest, newest)
}

func (c *formatCmd) raise(ctx context.Context, term *stdio, dir string, r *redisx.Redis) error {
	if err := datadir.Check(dir); err != nil { // the audit entry may have to be stored there
		return err
	}
	to := partition.NewestFormat()
	raised, err := storedformat.Raise(ctx, r.Client(), to)
	fmt.Fprintf(term.Out, "raised %d of %d partitions to format %d\n", raised, partition.Count, to)
	if raised > 0 {
		e := audit.Entry{Action: "format.raise", Target: audit.Target{Kind: "stored_format", IDs: []string{strconv.Itoa(to)}}}
		if err != nil {
			e.Outcome = audit.Unknown
		}
		err = errors.Join(err, c.record(ctx, term, e))
	}
	return err
}
