//go:build state_change

package main

import (
	"context"
	"fmt"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
)

// validated: this line of the library knows no required plugins.
func validated() []adaptation.Option {
	return nil
}

// tell hands an event without an answer to the plugins: up to NRI 0.11 each is a StateChange.
func tell(ctx context.Context, runtime *adaptation.Adaptation, event *adaptation.StateChangeEvent) error {
	calls := map[api.Event]func(context.Context, *adaptation.StateChangeEvent) error{
		api.Event_RUN_POD_SANDBOX:       runtime.RunPodSandbox,
		api.Event_STOP_POD_SANDBOX:      runtime.StopPodSandbox,
		api.Event_REMOVE_POD_SANDBOX:    runtime.RemovePodSandbox,
		api.Event_POST_CREATE_CONTAINER: runtime.PostCreateContainer,
		api.Event_START_CONTAINER:       runtime.StartContainer,
		api.Event_POST_START_CONTAINER:  runtime.PostStartContainer,
		api.Event_POST_UPDATE_CONTAINER: runtime.PostUpdateContainer,
		api.Event_REMOVE_CONTAINER:      runtime.RemoveContainer,
	}
	call, ok := calls[event.Event]
	if !ok {
		return fmt.Errorf("no event %s", event.Event)
	}
	return call(ctx, event)
}

// updateSandbox has nobody to tell: this line of the library knows no such event.
func updateSandbox(context.Context, *adaptation.Adaptation, []byte) ([]byte, error) {
	return nil, nil
}
