//go:build faults

package main

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"spendhook/internal/pause"
	"spendhook/internal/redistest"
)

// redisPause is how long Redis does not answer.
const redisPause = 10 * time.Second

// aofTrial is a trial of one daemon on a Redis of its own that keeps its data.
func aofTrial(t *testing.T) (*redistest.Server, *trial) {
	t.Helper()
	server := redistest.Start(t, redistest.Options{AOF: true})
	return server, newTrial(t, server.Client(), newInstallation(t, server.URL(), briefRetries))
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

// Redis is killed repeatedly. It had written all acknowledged commands to the kernel, so
// nothing is lost.
func TestRedisIsKilled(t *testing.T) {
	t.Parallel()
	server, tr := aofTrial(t)
	for range 3 {
		server.Restart()
		tr.grow(200)
	}
	tr.finish()
}

// Redis does not answer two daemons for some seconds: once by CLIENT PAUSE, once by SIGSTOP.
// Neither daemon takes over work of the other.
func TestRedisIsPaused(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{AOF: true})
	url := server.URL()
	tr := newTrial(t, server.Client(), newInstallation(t, url, briefRetries+sharedKey), newInstallation(t, url, briefRetries+sharedKey))
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
		began := time.Now()
		hurt()
		before := tr.load.count() // plus up to one answer under way for each client
		pause.For(t.Context(), redisPause*3/4)
		if n := tr.load.count() - before; n > emitters && time.Since(began) < redisPause {
			t.Errorf("%d events were accepted by a Redis that did not answer", n)
		}
		tr.grow(200)
	}
	for _, d := range tr.daemons {
		if _, metrics := get(t, d.admin+"/metrics"); !strings.Contains(metrics, "\nspendhook_partitions_taken_over_total 0\n") {
			t.Error("work of a running replica was taken over")
		}
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
	eventually(tr.t, patience, "there are keys of the queue", func() bool { // most are there for moments only
		keys, err := tr.client.Keys(tr.t.Context(), "asynq:*").Result()
		if err == nil && len(keys) > 0 {
			err = tr.client.Del(tr.t.Context(), keys...).Err()
		}
		if err != nil {
			tr.t.Fatal("delete the queue: ", err)
		}
		return len(keys) > 0
	})
}

// Two daemons start at the same time on an empty Redis. Each event is sent once. Then one
// daemon is killed, and the other takes over its work.
func TestTwoReplicasBeginTogether(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{AOF: true})
	url := server.URL()
	first, second := newInstallation(t, url, briefRetries+sharedKey), newInstallation(t, url, briefRetries+sharedKey)
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
