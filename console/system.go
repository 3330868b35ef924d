package console

import (
	"context"
	"time"
)

// systemStatus returns the state of the daemon's parts.
type systemStatus interface {
	Status(ctx context.Context) (Status, error)
}

// Status is the state of the daemon's parts.
type Status struct {
	Version, Replica string // this one
	Since            time.Time
	Replicas         []string // the living ones, of all
	Redis, Database  Part
	Memory           Memory
	Formats          string // that the partitions are stored in
}

// Part is a component that the daemon depends on.
type Part struct {
	Up       bool
	Problems []string
	Warnings []string
}

// Memory is the memory use of the fullest Redis server and its limits, in bytes. A Limit of 0
// means that the limit is unknown.
type Memory struct{ Used, Limit, HighWater int64 }
