package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of CPU time in /proc: USER_HZ is 100 on every Linux.
const tick = 10 * time.Millisecond

var errStat = errors.New("not a line of /proc/<pid>/stat")

// cpuTime returns the CPU time of a process, and that of its children that have ended.
func cpuTime(pid int) (own, children time.Duration, err error) {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	return parseStat(line)
}

// parseStat reads utime, stime, cutime and cstime, fields 14 to 17. The second field is a name in
// parentheses, which may contain spaces and parentheses.
func parseStat(line []byte) (own, children time.Duration, err error) {
	end := bytes.LastIndexByte(line, ')')
	if end < 0 {
		return 0, 0, errStat
	}
	fields := bytes.Fields(line[end+1:])
	if len(fields) < 15 {
		return 0, 0, errStat
	}
	var ticks [4]time.Duration
	for i, f := range fields[11:15] {
		n, err := strconv.ParseInt(string(f), 10, 64)
		if err != nil {
			return 0, 0, errStat
		}
		ticks[i] = time.Duration(n) * tick
	}
	return ticks[0] + ticks[1], ticks[2] + ticks[3], nil
}

// cores has the CPU times of all cores since the machine started, in ticks.
type cores struct{ idle, all int64 }

func readCores() (cores, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return cores{}, err
	}
	return parseCores(string(text))
}

// parseCores reads the first line: user, nice, system, idle, iowait, irq, softirq and steal. It
// ignores guest and guest_nice, which user and nice include.
func parseCores(text string) (c cores, err error) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return c, errStat
	}
	for i, f := range fields[1:9] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return c, errStat
		}
		c.all += n
		if i == 3 || i == 4 {
			c.idle += n
		}
	}
	return c, nil
}

// busySince returns the share of the cores that was not idle since before.
func (c cores) busySince(before cores) float64 {
	if c.all == before.all {
		return 0
	}
	return 1 - float64(c.idle-before.idle)/float64(c.all-before.all)
}

// peakMemory returns the largest resident memory that a process has had, in bytes.
func peakMemory(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	return parsePeak(string(text))
}

func parsePeak(status string) (int64, error) {
	for line := range strings.Lines(status) {
		rest, ok := strings.CutPrefix(line, "VmHWM:")
		if !ok {
			continue
		}
		kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		return kb << 10, err
	}
	return 0, errors.New("no VmHWM in /proc/<pid>/status")
}
