package main

import (
	"syscall"
	"testing"
	"time"

	"spendhook/internal/redistest"
)

// aofTrial is a trial of one daemon on a Redis of its own that keeps its data.
func aofTrial(t *testing.T) (*redistest.Server, *trial) {
	t.Helper()
	server := redistest.Start(t, redistest.Options{AOF: true})
	return server, newTrial(t, server.Client(), newHouse(t, server.URL(), briefRetries))
}

// Redis is stopped in order and started again, twice.
func TestRedisIsRestarted(t *testing.T) {
	t.Parallel()
	server, tr := aofTrial(t)
	for range 2 {
		server.Stop()
		server.Restart()
		tr.grow(200)
	}
	tr.finish()
}

// Redis is killed again and again. What it acknowledged it had given to the
// kernel, so only the machine could still lose it.
func TestRedisIsKilled(t *testing.T) {
	t.Parallel()
	server, tr := aofTrial(t)
	for range 3 {
		server.Restart()
		tr.grow(200)
	}
	tr.finish()
}

// Redis stops answering for some seconds, once by a pause of its own and once
// by a signal. No daemon is dead, and nobody takes over anything.
func TestRedisIsPaused(t *testing.T) {
	t.Parallel()
	server, tr := aofTrial(t)
	for _, hurt := range []func(){
		func() {
			if err := server.Client().ClientPause(t.Context(), redisPause).Err(); err != nil {
				t.Fatal(err)
			}
		},
		func() {
			server.Pause()
			time.AfterFunc(redisPause, server.Resume)
		},
	} {
		hurt()
		pause(t.Context(), redisPause)
		tr.grow(200)
	}
	tr.finish()
}

// Every key of the queue is deleted while tasks are queued and at work.
func TestQueueIsDeleted(t *testing.T) {
	t.Parallel()
	_, tr := aofTrial(t)
	for range 3 {
		tr.deleteQueue()
		tr.grow(200)
	}
	tr.finish()
}

func (tr *trial) deleteQueue() {
	tr.t.Helper()
	keys, err := tr.client.Keys(tr.t.Context(), "asynq:*").Result()
	if err == nil && len(keys) > 0 {
		err = tr.client.Del(tr.t.Context(), keys...).Err()
	}
	if err != nil || len(keys) == 0 {
		tr.t.Fatalf("delete %d keys of the queue: %v", len(keys), err)
	}
}

// Two daemons begin at the same moment on an empty Redis. Each event is sent
// once by one of them; then one is killed, and the other does its work.
func TestTwoReplicasBeginTogether(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{AOF: true})
	url := server.URL()
	first, second := newHouse(t, url, briefRetries+sharedKey), newHouse(t, url, briefRetries+sharedKey)
	tr := newTrial(t, server.Client(), first, second)
	tr.load.pause()
	if l := tr.account(); l.repeats > 0 {
		t.Errorf("%d POSTs were not counted as attempts", l.repeats)
	}
	tr.load.resume()
	tr.grow(200)
	tr.daemons[1].signal(syscall.SIGKILL)
	tr.daemons[1].ended(t)
	tr.load.aim(tr.daemons[0])
	tr.grow(200)
	tr.replace(1, second.startChild(t))
	tr.grow(200)
	tr.finish()
}
