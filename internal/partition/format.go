package partition

import (
	_ "embed" // the script
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// OldestFormat is the oldest stored format that this build reads. What a
// partition keeps under FormatKey is written in this or a newer one.
const OldestFormat = 1

// newest is text so that the linker can set it, to build a daemon of the next
// release: -ldflags "-X spendhook/internal/partition.newest=2".
var newest = "1"

var newestFormat = func() int {
	n, err := strconv.Atoi(newest)
	if err != nil || n < OldestFormat {
		panic("partition.newest is no format: " + newest)
	}
	return n
}()

// NewestFormat is the newest stored format that this build reads, and the one
// that it raises partitions to.
func NewestFormat() int { return newestFormat }

// FormatKey is the number of the format that partition p is stored in; absent
// means 1. Type: string. Writer: the operator's command. TTL: none.
func FormatKey(p int) string { return Prefix(p) + "format" }

//go:embed format.lua
var formatSource string

// FormatLua is the first part of every script that writes keys of partitions. It defines the
// function check, which the script must call before anything else.
func FormatLua() string {
	return fmt.Sprintf("local OLDEST, NEWEST = %d, %d\n", OldestFormat, newestFormat) + formatSource
}

// FormatError says that this build cannot read a partition. Nothing was done.
type FormatError struct {
	Partition, Format int
}

func (e *FormatError) Error() string {
	reads := strconv.Itoa(OldestFormat)
	if newestFormat > OldestFormat {
		reads += " to " + strconv.Itoa(newestFormat)
	}
	advice := "upgrade this replica"
	if e.Format < OldestFormat {
		advice = "raise it with the release before this one"
	}
	return fmt.Sprintf("this build reads stored format %s, partition %d has %d: %s", reads, e.Partition, e.Format, advice)
}

// CheckedError returns the FormatError if the function check refused the script; else err.
func CheckedError(err error) error {
	reply, ok := errors.AsType[redis.Error](err)
	if !ok {
		return err
	}
	e := &FormatError{}
	if n, _ := fmt.Sscanf(reply.Error(), "FORMAT %d %d", &e.Partition, &e.Format); n == 2 {
		return e
	}
	return err
}
