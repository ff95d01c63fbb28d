// Command reference-runtime is a container runtime's NRI end made of the reference library: its adaptation package serves
// plugins on the socket that is the first argument, and whoever started the program tells it over standard input what happens
// in the runtime.
//
// Both directions carry lines of JSON. A line with "id" is a call of the driver's, or the answer to it; one with "up" is a call
// back to the driver (the runtime's list, updates that a plugin wants), or the answer to that; "seen" tells that a plugin's
// message was read, and whether the reference library would have written the same bytes. Bodies are protobuf.
package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"
)

// Longest line: a list of thousands of containers.
const longest = 64 << 20

type line struct {
	ID    uint64 `json:"id,omitempty"`
	Up    uint64 `json:"up,omitempty"`
	Call  string `json:"call,omitempty"`
	Body  body   `json:"body,omitempty"`
	Error string `json:"error,omitempty"`
	Seen  string `json:"seen,omitempty"`
}

// body is a protobuf message, in hexadecimal digits.
type body []byte

func (b body) MarshalText() ([]byte, error) {
	return hex.AppendEncode(nil, b), nil
}

func (b *body) UnmarshalText(text []byte) (err error) {
	*b, err = hex.DecodeString(string(text))
	return err
}

// driver is who started this program.
type driver struct {
	writing sync.Mutex
	out     *json.Encoder
	mutex   sync.Mutex
	last    uint64
	waiting map[uint64]chan line
}

func (d *driver) write(l line) {
	d.writing.Lock()
	defer d.writing.Unlock()
	if err := d.out.Encode(l); err != nil {
		fmt.Fprintln(os.Stderr, "reference-runtime: the driver is gone:", err)
		os.Exit(1)
	}
}

// ask calls the driver back.
func (d *driver) ask(call string, body proto.Message, answer proto.Message) error {
	var bytes []byte
	if body != nil {
		var err error
		if bytes, err = proto.Marshal(body); err != nil {
			return err
		}
	}
	reply := make(chan line, 1)
	d.mutex.Lock()
	d.last++
	id := d.last
	d.waiting[id] = reply
	d.mutex.Unlock()
	d.write(line{Up: id, Call: call, Body: bytes})
	select {
	case got := <-reply:
		if got.Error != "" {
			return errors.New(got.Error)
		}
		return proto.Unmarshal(got.Body, answer)
	case <-time.After(30 * time.Second):
		return fmt.Errorf("the driver does not answer to %s", call)
	}
}

func (d *driver) answered(l line) {
	d.mutex.Lock()
	reply := d.waiting[l.Up]
	delete(d.waiting, l.Up)
	d.mutex.Unlock()
	if reply != nil {
		reply <- l
	}
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: reference-runtime NRI-SOCKET FOLDER")
		os.Exit(2)
	}
	d := &driver{out: json.NewEncoder(os.Stdout), waiting: map[uint64]chan line{}}
	if err := serve(d, os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "reference-runtime:", err)
		os.Exit(1)
	}
}

// serve runs until standard input ends.
func serve(d *driver, socket, folder string) error {
	var runtime *adaptation.Adaptation
	runtime, err := adaptation.New("reference", "v0",
		func(ctx context.Context, synchronize adaptation.SyncCB) error {
			return list(ctx, d, synchronize, func() { runtime.BlockPluginSync().Unblock() })
		},
		func(_ context.Context, updates []*adaptation.ContainerUpdate) ([]*adaptation.ContainerUpdate, error) {
			failed := &adaptation.UpdateContainersResponse{}
			err := d.ask("update", &adaptation.UpdateContainersRequest{Update: updates}, failed)
			return failed.Failed, err
		},
		append(validated(),
			adaptation.WithSocketPath(socket),
			adaptation.WithPluginPath(folder),
			adaptation.WithPluginConfigPath(folder),
			watched(d),
		)...,
	)
	if err != nil {
		return err
	}
	// It asks for the list before it is up.
	go func() {
		if err := runtime.Start(); err != nil {
			fmt.Fprintln(os.Stderr, "reference-runtime:", err)
			os.Exit(1)
		}
		d.write(line{Seen: "started"})
	}()
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, longest)
	for lines.Scan() {
		var l line
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return err
		}
		if l.Up != 0 {
			d.answered(l)
			continue
		}
		// The library has a lock of its own; whoever calls twice at once waits there.
		go func() {
			answer := line{ID: l.ID}
			body, err := call(runtime, l.Call, l.Body)
			if err != nil {
				answer.Error = err.Error()
			} else {
				answer.Body = body
			}
			d.write(answer)
		}()
	}
	return lines.Err()
}

// list tells a plugin what runs. The driver holds its list still from the question until it hears that the plugin is taken in,
// so that no event falls in between.
func list(ctx context.Context, d *driver, synchronize adaptation.SyncCB, end func()) error {
	known := &adaptation.SynchronizeRequest{}
	if err := d.ask("list", nil, known); err != nil {
		return err
	}
	updates, err := synchronize(ctx, known.Pods, known.Containers)
	told := d.ask("listed", &adaptation.SynchronizeResponse{Update: updates}, &api.Empty{})
	go func() {
		end()
		_ = d.ask("taken in", nil, &api.Empty{})
	}()
	return errors.Join(err, told)
}

// call hands an event of the runtime to the plugins.
func call(runtime *adaptation.Adaptation, name string, body []byte) ([]byte, error) {
	ctx := context.Background()
	switch name {
	case "CreateContainer":
		request := &adaptation.CreateContainerRequest{}
		if err := proto.Unmarshal(body, request); err != nil {
			return nil, err
		}
		answer, err := runtime.CreateContainer(ctx, request)
		return marshal(answer, err)
	case "UpdateContainer":
		request := &adaptation.UpdateContainerRequest{}
		if err := proto.Unmarshal(body, request); err != nil {
			return nil, err
		}
		answer, err := runtime.UpdateContainer(ctx, request)
		return marshal(answer, err)
	case "StopContainer":
		request := &adaptation.StopContainerRequest{}
		if err := proto.Unmarshal(body, request); err != nil {
			return nil, err
		}
		answer, err := runtime.StopContainer(ctx, request)
		return marshal(answer, err)
	case "UpdatePodSandbox":
		return updateSandbox(ctx, runtime, body)
	case "StateChange":
		event := &adaptation.StateChangeEvent{}
		if err := proto.Unmarshal(body, event); err != nil {
			return nil, err
		}
		return nil, tell(ctx, runtime, event)
	}
	return nil, fmt.Errorf("no call %q", name)
}

func marshal(message proto.Message, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	return proto.Marshal(message)
}
