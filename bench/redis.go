package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// redisServer is a private redis-server with an append-only file.
type redisServer struct {
	*process
	socket string
	port   string // of a master of a Cluster
}

// startRedis runs a server in dir; args override the usual arguments.
func startRedis(ctx context.Context, dir string, args ...string) (*redisServer, error) {
	socket := filepath.Join(dir, "redis.sock")
	args = append([]string{
		"--dir", dir, "--unixsocket", socket, "--port", "0", "--save", "",
		"--appendonly", "yes", "--appendfsync", "everysec",
		"--hash-max-listpack-value", "512", // as docs/redis.md advises
	}, args...)
	p, err := startProcess(dir, "redis", "redis-server", args...)
	if err != nil {
		return nil, err
	}
	r := &redisServer{process: p, socket: socket}
	err = await(ctx, startTime, func() (bool, error) {
		answer, err := r.ask(ctx, "PING")
		return err == nil && answer == "PONG", p.alive()
	})
	if err != nil {
		p.Kill()
		return nil, fmt.Errorf("redis does not answer: %w", err)
	}
	return r, nil
}

func (r *redisServer) url() string { return "unix://" + r.socket }

// ask sends one command through redis-cli.
func (r *redisServer) ask(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "redis-cli", append([]string{"-e", "-s", r.socket}, args...)...) //nolint:gosec // our own arguments
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("redis-cli %s: %w: %s", args[0], err, out)
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}

// pendingScript counts the events that are not settled. docs/redis.md describes the keys.
const pendingScript = `local n = 0
for p = 0, 255 do n = n + (redis.call('GET', 'sh:{' .. p .. '}:pending') or 0) end
return n`

// pending returns how many events are not settled.
func (r *redisServer) pending(ctx context.Context) (int64, error) {
	answer, err := r.ask(ctx, "EVAL", pendingScript, "0")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(answer, 10, 64)
}

const readyScript = `local n = 0
for _, queue in ipairs(redis.call('KEYS', 'sh:{*}:q:*')) do n = n + redis.call('LLEN', queue) end
return n`

// ready returns how many events wait in ready queues.
func (r *redisServer) ready(ctx context.Context) (int64, error) {
	answer, err := r.ask(ctx, "EVAL", readyScript, "0")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(answer, 10, 64)
}

// inFlightScript finds the ids of the events in the in-flight notes of a replica.
const inFlightScript = `local ids = {}
for _, note in ipairs(redis.call('KEYS', 'sh:{*}:n:' .. ARGV[1] .. '.*')) do
  for _, noted in ipairs(redis.call('HKEYS', note)) do
    for id in string.gmatch(noted, 'bench%-%d+%-%d+%-%d+') do ids[#ids + 1] = id end
  end
end
return ids`

// inFlight returns the ids of the events that a killed replica had in flight.
func (r *redisServer) inFlight(ctx context.Context, replica string) ([]string, error) {
	answer, err := r.ask(ctx, "EVAL", inFlightScript, "0", replica)
	ids := strings.Fields(answer)
	slices.Sort(ids)
	return slices.Compact(ids), err
}

// tasksScript counts the pending and the active tasks of all asynq queues.
const tasksScript = `local n = 0
for _, queue in ipairs(redis.call('SMEMBERS', 'asynq:queues')) do
  n = n + redis.call('LLEN', 'asynq:{' .. queue .. '}:pending') + redis.call('LLEN', 'asynq:{' .. queue .. '}:active')
end
return n`

// tasks returns how many asynq tasks are pending or active.
func (r *redisServer) tasks(ctx context.Context) (int64, error) {
	answer, err := r.ask(ctx, "EVAL", tasksScript, "0")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(answer, 10, 64)
}

// loseScript deletes all keys of asynq.
const loseScript = `local keys = redis.call('KEYS', 'asynq:*')
for _, key in ipairs(keys) do redis.call('UNLINK', key) end
return #keys`

// loseQueues deletes all queues and their tasks.
func (r *redisServer) loseQueues(ctx context.Context) error {
	_, err := r.ask(ctx, "EVAL", loseScript, "0")
	return err
}

// usedMemory returns the memory that Redis reports as used, in bytes.
func (r *redisServer) usedMemory(ctx context.Context) (int64, error) {
	return r.info(ctx, "memory", "used_memory")
}

// info reads one number of a section of INFO.
func (r *redisServer) info(ctx context.Context, section, name string) (int64, error) {
	text, err := r.ask(ctx, "INFO", section)
	if err != nil {
		return 0, err
	}
	return infoNumber(text, name)
}

// infoNumber reads one number of an INFO answer.
func infoNumber(info, name string) (int64, error) {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		}
	}
	return 0, errors.New("no " + name + " in INFO")
}

// rewriteNoMore disables rewrites of the append-only file and waits until none is running.
// rewriteAgain enables rewrites.
func (r *redisServer) rewriteNoMore(ctx context.Context) error {
	_, err := r.ask(ctx, "CONFIG", "SET", "auto-aof-rewrite-percentage", "0")
	return errors.Join(err, await(ctx, drainTime, func() (bool, error) {
		busy, err := r.info(ctx, "persistence", "aof_rewrite_in_progress")
		return busy == 0, err
	}))
}

func (r *redisServer) rewriteAgain(ctx context.Context) error {
	_, err := r.ask(ctx, "CONFIG", "SET", "auto-aof-rewrite-percentage", "100")
	return err
}

// forbidClaims makes Redis refuse the command by which claims take events from ready queues, so
// that a backlog builds up. allowClaims ends that. The script that accepts events claims none of
// an array of 100 events either: the first part is larger than what it may claim, and afterwards
// the company has a ready queue.
func (r *redisServer) forbidClaims(ctx context.Context) error {
	_, err := r.ask(ctx, "ACL", "SETUSER", "default", "-lpop")
	return err
}

func (r *redisServer) allowClaims(ctx context.Context) error {
	_, err := r.ask(ctx, "ACL", "SETUSER", "default", "+lpop")
	return err
}
