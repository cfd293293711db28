"""A plug-in of the tests alone (entry point of `vllm.general_plugins`): lets rank 1 fail in the middle of serving.

When the file that STOKER_TEST_FAULT names is there, rank 1 aborts the group at the end of its step, as a launch that
failed there does.
"""

import os


def register():
    import torch.distributed as dist

    from stoker.vllm import tail

    if getattr(tail.Tail.check, "of_the_test", False):
        return
    check, path = tail.Tail.check, os.environ["STOKER_TEST_FAULT"]

    def failing_check(self):
        if dist.get_rank(self.group) == 1 and os.path.exists(path):
            self.communicator.abort()
        check(self)

    failing_check.of_the_test = True
    tail.Tail.check = failing_check
