package console

import (
	"context"
	"time"

	"spendhook/internal/egress"
)

// systemStatus returns the state of the daemon's parts.
type systemStatus interface {
	Status(ctx context.Context) (Status, error)
}

// Status is the state of the daemon's parts.
type Status struct {
	Version, Replica string    // of this process
	Since            time.Time // when this process started
	Replicas         []string  // all that have a recent heartbeat
	Redis, Database  Part
	Memory           Memory
	Formats          string // stored formats of the partitions

	EgressAddresses []egress.Source // that are published
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
