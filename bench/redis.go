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
	"time"
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
for _, active in ipairs(redis.call('KEYS', 'sh:{*}:active')) do
  local P = string.sub(active, 1, -7)
  for _, company in ipairs(redis.call('SMEMBERS', active)) do
    n = n + redis.call('ZCOUNT', P .. 'ei:' .. company, '(' .. (redis.call('HGET', P .. 'c:' .. company, 'cursor') or '0'), '+inf')
  end
end
return n`

// ready returns how many events are beyond the cursors of their companies.
func (r *redisServer) ready(ctx context.Context) (int64, error) {
	answer, err := r.ask(ctx, "EVAL", readyScript, "0")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(answer, 10, 64)
}

// inFlightScript finds the ids of the events in the partitions of a replica that it had not matched, and of the
// deliveries of retry sets that it had in flight.
const inFlightScript = `local ids = {}
for _, owner in ipairs(redis.call('KEYS', 'sh:{*}:owner')) do
  if string.sub(redis.call('GET', owner), 1, #ARGV[1] + 1) == ARGV[1] .. '.' then
    local P = string.sub(owner, 1, -6)
    for _, company in ipairs(redis.call('SMEMBERS', P .. 'active')) do
      local cursor = redis.call('HGET', P .. 'c:' .. company, 'cursor') or '0'
      for _, id in ipairs(redis.call('ZRANGEBYSCORE', P .. 'ei:' .. company, '(' .. cursor, '+inf')) do
        if redis.call('GETRANGE', P .. 'e:' .. company .. ':' .. id, 0, 0) == 'R' then ids[#ids + 1] = id end
      end
    end
    for _, marks in ipairs(redis.call('KEYS', P .. 'ef:*')) do
      for _, id in ipairs(redis.call('HKEYS', marks)) do ids[#ids + 1] = id end
    end
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

// tellScript tells the owners of partitions that an endpoint of each company is to be served.
const tellScript = `for _, key in ipairs(redis.call('KEYS', 'sh:{*}:c:*')) do
  local prefix, company = string.match(key, '^(.*:)c:(.*)$')
  redis.call('SADD', prefix .. 'told', 'e:' .. company .. '/' .. company)
end`

// forbidTurns makes Redis refuse the command by which turns read events from the log, so that a backlog builds up: it
// has a turn of each company fail, and from then on the events of the company wait for their turn. allowTurns ends that.
func (r *redisServer) forbidTurns(ctx context.Context) error {
	if _, err := r.ask(ctx, "ACL", "SETUSER", "default", "-zrangebyscore"); err != nil {
		return err
	}
	_, err := r.ask(ctx, "EVAL", tellScript, "0")
	return errors.Join(err, pause(ctx, time.Second)) // until the owners have looked
}

func (r *redisServer) allowTurns(ctx context.Context) error {
	_, err := r.ask(ctx, "ACL", "SETUSER", "default", "+zrangebyscore")
	return err
}
