"""The episodic memory in RecurrentPPO of sb3-contrib: a policy that reads it, a callback that fills it and trains it.

    model = RecurrentPPO(MemoryLstmPolicy, env, policy_kwargs={"memory": MemoryConfig()})
    model.learn(1_000_000, callback=MemoryCallback())

It is the policy that reads, because a features extractor never sees the LSTM's state. What is different from the paper:
p is the features alone, without last action and reward; and the contrastive loss is not in each optimiser step but in
the first one of each epoch, where its gradient is added after RecurrentPPO has clipped its own.
"""

import math
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from longtail.memory import BoostedMemory, MemoryConfig

try:
    from sb3_contrib import RecurrentPPO
    from sb3_contrib.common.recurrent.buffers import RecurrentRolloutBuffer
    from sb3_contrib.common.recurrent.policies import RecurrentActorCriticCnnPolicy
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.policies import BaseModel
    from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first
    from stable_baselines3.common.type_aliases import Schedule
except ImportError as error:
    raise ImportError('longtail.integrations.sb3 needs sb3-contrib: pip install "longtail[sb3]"') from error


class MemoryLstmPolicy(RecurrentActorCriticCnnPolicy):
    """CnnLstmPolicy whose LSTM takes [features, m], m being what the memory recalls for the features and h.

    Actor and critic share this LSTM, as in the paper; by RecurrentPPO's rule the value's gradient ends before a shared
    one. With `shared_lstm=False` the critic has what else RecurrentPPO offers, an LSTM of its own (with
    `enable_critic_lstm=True`) or a linear layer: neither reads the memory, which holds states of the actor's LSTM.

    The memory is a part of the policy: `model.save` writes its contents, images included, and `load` reads them.
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        lr_schedule: Schedule,
        *,
        memory: MemoryConfig | None = None,
        shared_lstm: bool = True,
        enable_critic_lstm: bool = False,
        **keywords: Any,
    ) -> None:
        if not isinstance(observation_space, spaces.Box) or not is_image_space(observation_space):
            raise ValueError(f"observation_space is {observation_space}: it must be images, uint8 of 0..255")
        super().__init__(
            observation_space,
            action_space,
            lr_schedule,
            shared_lstm=shared_lstm,
            enable_critic_lstm=enable_critic_lstm,
            **keywords,
        )
        num_layers, _, hidden = self.lstm_hidden_state_shape
        if num_layers != 1:
            raise ValueError(f"n_lstm_layers is {num_layers}: it must be 1, whose state is the one that is remembered")
        # The memory's images are [H, W, C], as its augmentations take them.
        self.channels_first = is_image_space_channels_first(observation_space)
        image_shape = self.images(torch.empty(observation_space.shape)).shape
        self.lstm_actor = nn.LSTM(self.features_dim + hidden, hidden, **self.lstm_kwargs)
        self.memory = BoostedMemory(self.features_dim, hidden, tuple(image_shape), memory)
        self.contrastive_hook: RemovableHandle | None = None
        # Made anew: the one before knows neither this LSTM nor W and b.
        parameters, learning_rate = self.parameters(), lr_schedule(1)
        self.optimizer = self.optimizer_class(parameters, lr=learning_rate, **self.optimizer_kwargs)  # type: ignore[call-arg]

    def images(self, obs: Tensor) -> Tensor:
        """Observations as images [..., H, W, C]."""
        return obs.movedim(-3, -1) if self.channels_first else obs

    def encode(self, image_NHWC: Tensor) -> Tensor:
        """p [N, P], the actor's features."""
        obs = image_NHWC.movedim(-1, -3) if self.channels_first else image_NHWC
        return BaseModel.extract_features(self, obs, self.pi_features_extractor)

    def _process_sequence(  # type: ignore[override]  # there it needs no self
        self, features: Tensor, lstm_states: tuple[Tensor, Tensor], episode_starts: Tensor, lstm: nn.LSTM
    ) -> tuple[Tensor, Any]:
        """Steps of S sequences, one after the other in `features`: all that acts, judges or learns comes by here."""
        if lstm is not self.lstm_actor:
            return super()._process_sequence(features, lstm_states, episode_starts, lstm)
        (h_1SH, c_1SH), S = lstm_states, lstm_states[0].shape[1]
        p_TSP = features.view(S, -1, features.shape[-1]).swapaxes(0, 1)
        keep_TS1 = 1 - episode_starts.view(S, -1, 1).swapaxes(0, 1)
        keys_NC, states = self.memory.keys(), []
        for p_SP, keep_S1 in zip(p_TSP, keep_TS1, strict=True):
            h_1SH, c_1SH = h_1SH * keep_S1, c_1SH * keep_S1
            m_SH = self.memory.read(p_SP, h_1SH[0], keys_NC)
            _, (h_1SH, c_1SH) = lstm(torch.cat([p_SP, m_SH], -1)[None], (h_1SH, c_1SH))
            states.append(h_1SH[0])
        return torch.stack(states, 1).flatten(0, 1), (h_1SH, c_1SH)


class MemoryCallback(BaseCallback):
    """Hands each rollout to the memory of a MemoryLstmPolicy, adds the contrastive loss, and lets rare states into MEM.

    MEM changes when a rollout has been learned from and before the next one: acting and learning read the same
    contents. Momentum counts epochs, since each has one pass over the familiarity buffer; `transfer_every` counts
    rollouts.
    """

    def _on_training_start(self) -> None:
        if not isinstance(self.model, RecurrentPPO) or not isinstance(self.model.policy, MemoryLstmPolicy):
            raise TypeError("MemoryCallback is for RecurrentPPO with a MemoryLstmPolicy")
        self.policy, self.learned_from = self.model.policy, False
        if self.policy.contrastive_hook is not None:  # learning was interrupted
            self.policy.contrastive_hook.remove()
        self.policy.contrastive_hook = self.policy.optimizer.register_step_pre_hook(self._before_optimizer_step)

    def _on_rollout_start(self) -> None:
        self._update()

    def _on_step(self) -> bool:
        return True

    @torch.no_grad()
    def _on_rollout_end(self) -> None:
        """The buffer is [T, B, ...] until learning begins to sample from it."""
        assert isinstance(self.model, RecurrentPPO) and isinstance(self.model.rollout_buffer, RecurrentRolloutBuffer)
        buffer, policy, memory = self.model.rollout_buffer, self.policy, self.policy.memory
        obs_TBX = torch.as_tensor(buffer.observations, device=policy.device)
        # What the buffer has is the state before its reset; the memory takes the one that was read with.
        first_TB1 = torch.as_tensor(buffer.episode_starts, device=policy.device)[..., None] > 0
        h_TBH = torch.as_tensor(buffer.hidden_states_pi[:, 0], device=policy.device).masked_fill(first_TB1, 0)
        images_TBHWC, p_TBP = policy.images(obs_TBX), h_TBH.new_zeros(*h_TBH.shape[:2], policy.features_dim)
        for t in range(0, len(p_TBP), memory.config.hop):  # only these are kept
            p_TBP[t] = policy.encode(images_TBHWC[t])
        memory.observe(images_TBHWC, p_TBP, h_TBH)
        batch_size = self.model.batch_size or buffer.buffer_size * buffer.n_envs
        self.minibatches = math.ceil(buffer.buffer_size * buffer.n_envs / batch_size)
        self.optimizer_steps, self.learned_from = 0, True

    def _before_optimizer_step(self, *_: Any) -> None:
        """RecurrentPPO computes its loss itself, so the contrastive loss comes in as its share of the gradient."""
        memory, is_epoch_start = self.policy.memory, self.optimizer_steps % self.minibatches == 0
        self.optimizer_steps += 1
        if not is_epoch_start or not memory.config.contrastive or not memory.familiarity.is_full:
            return
        loss = memory.loss(self.policy.encode)
        (memory.config.contrastive_cost * loss).backward()
        self.logger.record("memory/contrastive_loss", loss.item())

    def _on_training_end(self) -> None:
        self._update()
        if self.policy.contrastive_hook is not None:
            self.policy.contrastive_hook.remove()
            self.policy.contrastive_hook = None

    def _update(self) -> None:
        """Once for each rollout, after learning."""
        if self.learned_from:
            self.policy.memory.update()
            self.logger.record("memory/states", int(self.policy.memory.mem.filled))
        self.learned_from = False
