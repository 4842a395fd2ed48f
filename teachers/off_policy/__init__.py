"""The fast learner of SAC, TD3 and DDPG: networks by hand, parameters in one vector each."""
