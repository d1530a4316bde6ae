"""PPO in one file, in CleanRL's style, on a pole on a cart of its own."""

import argparse
import random
import time

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim


class CartPoles:
    """Poles on carts, all moved in one call; an episode ends where a pole falls, or after 500 steps."""

    def __init__(self, seeds):
        self.rngs = [np.random.RandomState(seed) for seed in seeds]
        self.state = np.zeros((4, len(seeds)))
        self.steps = np.zeros(len(seeds), dtype=np.int64)

    def reset(self):
        for i in range(len(self.rngs)):
            self.reset_one(i)
        return self.state.T.astype(np.float32)

    def reset_one(self, i):
        self.state[:, i] = self.rngs[i].uniform(-0.05, 0.05, size=4)
        self.steps[i] = 0

    def step(self, actions):
        """Observations, whether each episode ended, and the returns of those that did; each step is worth 1."""
        x, x_dot, theta, theta_dot = self.state
        force = np.where(actions == 1, 10.0, -10.0)
        costheta, sintheta = np.cos(theta), np.sin(theta)
        temp = (force + 0.05 * theta_dot**2 * sintheta) / 1.1
        thetaacc = (9.8 * sintheta - costheta * temp) / (0.5 * (4.0 / 3.0 - 0.1 * costheta**2 / 1.1))
        xacc = temp - 0.05 * thetaacc * costheta / 1.1
        self.state += 0.02 * np.stack([x_dot, xacc, theta_dot, thetaacc])
        self.steps += 1
        x, _, theta, _ = self.state
        done = (np.abs(x) > 2.4) | (np.abs(theta) > 0.2095) | (self.steps >= 500)
        returns = self.steps[done].tolist()
        for i in np.flatnonzero(done):
            self.reset_one(i)
        return self.state.T.astype(np.float32), done, returns


def layer_init(layer, std=2**0.5, bias_const=0.0):
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, bias_const)
    return layer


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(
            layer_init(nn.Linear(4, 64)),
            nn.Tanh(),
            layer_init(nn.Linear(64, 64)),
            nn.Tanh(),
            layer_init(nn.Linear(64, 1), std=1.0),
        )
        self.actor = nn.Sequential(
            layer_init(nn.Linear(4, 64)),
            nn.Tanh(),
            layer_init(nn.Linear(64, 64)),
            nn.Tanh(),
            layer_init(nn.Linear(64, 2), std=0.01),
        )

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action):
        logits = self.actor(x).log_softmax(-1)
        probs = logits.exp()
        return action, logits.gather(1, action.unsqueeze(1)).squeeze(1), -(logits * probs).sum(-1), self.critic(x)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data", help="unused; every script of this folder takes it")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--iterations", "--epochs", type=int, default=80)
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--num-steps", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--gae-lambda", type=float, default=0.95)
    parser.add_argument("--num-minibatches", type=int, default=4)
    parser.add_argument("--update-epochs", type=int, default=4)
    parser.add_argument("--clip-coef", type=float, default=0.2)
    parser.add_argument("--ent-coef", type=float, default=0.01)
    parser.add_argument("--vf-coef", type=float, default=0.5)
    parser.add_argument("--max-grad-norm", type=float, default=0.5)
    args = parser.parse_args()
    batch_size = args.num_envs * args.num_steps
    minibatch_size = batch_size // args.num_minibatches

    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # layers of 64 are too small to share
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    envs = CartPoles([args.seed + i for i in range(args.num_envs)])
    agent = Agent().to(device)
    optimizer = optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5, fused=True)

    obs = torch.zeros((args.num_steps, args.num_envs, 4)).to(device)
    actions = torch.zeros((args.num_steps, args.num_envs), dtype=torch.long).to(device)
    rewards = torch.ones((args.num_steps, args.num_envs)).to(device)
    dones = torch.zeros((args.num_steps, args.num_envs)).to(device)

    global_step = 0
    start_time = time.time()
    next_obs = torch.from_numpy(envs.reset()).to(device)
    next_done = torch.zeros(args.num_envs).to(device)
    returns_seen = []

    for iteration in range(1, args.iterations + 1):
        optimizer.param_groups[0]["lr"] = (1.0 - (iteration - 1.0) / args.iterations) * args.learning_rate

        for step in range(args.num_steps):
            global_step += args.num_envs
            obs[step] = next_obs
            dones[step] = next_done
            with torch.no_grad():
                action = torch.multinomial(agent.actor(next_obs).softmax(-1), 1, True).squeeze(1)
            actions[step] = action
            next_obs, done, returned = envs.step(action.cpu().numpy())
            next_obs, next_done = torch.from_numpy(next_obs).to(device), torch.from_numpy(done).float().to(device)
            returns_seen += returned

        with torch.no_grad():  # what was not needed to act, for all steps of the rollout at once
            everything = torch.cat([obs.reshape(-1, 4), next_obs])
            values, next_value = agent.get_value(everything).view(-1, args.num_envs).split([args.num_steps, 1])
            logprobs = agent.get_action_and_value(obs.reshape(-1, 4), actions.reshape(-1))[1].view_as(actions)
            nextnonterminal = 1.0 - torch.cat([dones[1:], next_done[None]])
            delta = rewards + args.gamma * torch.cat([values[1:], next_value]) * nextnonterminal - values
            factors = (args.gamma * args.gae_lambda * nextnonterminal).numpy()
            sums = delta.numpy()
            for t in reversed(range(args.num_steps - 1)):
                sums[t] += factors[t] * sums[t + 1]
            advantages = torch.from_numpy(sums).to(device)
            returns = advantages + values

        b_obs = obs.reshape((-1, 4))
        b_logprobs = logprobs.reshape(-1)
        b_actions = actions.reshape(-1)
        b_advantages = advantages.reshape(-1)
        b_returns = returns.reshape(-1)
        b_values = values.reshape(-1)

        b_inds = np.arange(batch_size)
        clipfracs = []
        for _epoch in range(args.update_epochs):
            np.random.shuffle(b_inds)
            for start in range(0, batch_size, minibatch_size):
                mb_inds = torch.from_numpy(b_inds[start : start + minibatch_size])
                _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs[mb_inds], b_actions[mb_inds])
                logratio = newlogprob - b_logprobs[mb_inds]
                ratio = logratio.exp()
                with torch.no_grad():
                    approx_kl = ((ratio - 1) - logratio).mean()
                    clipfracs += [((ratio - 1.0).abs() > args.clip_coef).float().mean()]

                mb_advantages = b_advantages[mb_inds]
                mb_advantages = (mb_advantages - mb_advantages.mean()) / (mb_advantages.std() + 1e-8)
                pg_loss1 = -mb_advantages * ratio
                pg_loss2 = -mb_advantages * torch.clamp(ratio, 1 - args.clip_coef, 1 + args.clip_coef)
                pg_loss = torch.max(pg_loss1, pg_loss2).mean()

                newvalue = newvalue.view(-1)
                v_loss_unclipped = (newvalue - b_returns[mb_inds]) ** 2
                v_clipped = b_values[mb_inds] + torch.clamp(
                    newvalue - b_values[mb_inds], -args.clip_coef, args.clip_coef
                )
                v_loss_clipped = (v_clipped - b_returns[mb_inds]) ** 2
                v_loss = 0.5 * torch.max(v_loss_unclipped, v_loss_clipped).mean()
                loss = pg_loss - args.ent_coef * entropy.mean() + args.vf_coef * v_loss

                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()

        mean = np.mean(returns_seen[-50:]) if returns_seen else 0.0
        sps = global_step / (time.time() - start_time)
        print(
            f"iteration {iteration} global_step={global_step} SPS {sps:.0f} loss {loss.item():.4f} "
            f"approx_kl {approx_kl.item():.5f} clipfrac {torch.stack(clipfracs).mean().item():.3f} "
            f"episodic_return={mean:.1f}"
        )
    print(f"final mean return: {mean:.2f}")
