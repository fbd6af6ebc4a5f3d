"""A block pool as an engine of its own: level `pool` of spec/PROTOCOL.md, standard library only.

Theory of operation. `main` reads a line, has `Pool` do what it says, and writes a line. The pool is
five lists: the free queue, the reference counts, the key on each block, the blocks that carry each
key, and the names of keys. A key stands for (namespace, all that comes before, the block's own
tokens); it is numbered when it is first seen, by a look-up of (key of the block before, tokens).

Nothing of servecheck is imported: an engine needs the document alone.
"""

import json
import sys

VERSION = 1


class Pool:
    """Blocks, the free queue, and the index of what can be found."""

    def __init__(self, config, policy):
        first = 1 if policy["null_block"] else 0
        self.size = config["block_size"]
        self.policy = policy
        self.usable = config["num_blocks"] - first
        self.free = list(range(first, config["num_blocks"]))
        self.refs = [0] * config["num_blocks"]
        self.keys = [None] * config["num_blocks"]
        self.found = {}
        """Key: the blocks that carry it, the oldest first."""
        self.names = {}
        """(Key of the block before, or the namespace; tokens): key."""

    def keys_of(self, namespace, text):
        """The keys of all full blocks of a text."""
        before, keys = (namespace.get("adapter"), namespace.get("salt")), []
        for end in range(self.size, len(text) + 1, self.size):
            link = (before, tuple(text[end - self.size : end]))
            before = self.names.setdefault(link, f"k{len(self.names)}")
            keys.append(before)
        return keys

    def match(self, namespace, text, limit):
        hits = []
        for key in self.keys_of(namespace, text)[:limit]:
            if key not in self.found:
                break
            hits.append(self.found[key][0 if self.policy["lookup"] == "oldest" else -1])
        return {"blocks": hits}

    def acquire(self, hits):
        for block in hits:
            if self.refs[block] == 0:
                self.free.remove(block)
            self.refs[block] += 1
        return {}

    def extend(self, count):
        if count > len(self.free):
            raise ValueError(f"{count} blocks of {len(self.free)} free ones")
        taken, self.free = self.free[:count], self.free[count:]
        for block in taken:
            self.refs[block] = 1
            self.forget(block)
        return {"blocks": taken}

    def forget(self, block):
        """Take the key off a block; other blocks may carry the same."""
        key, self.keys[block] = self.keys[block], None
        if key is not None:
            self.found[key].remove(block)
            if not self.found[key]:
                del self.found[key]

    def publish(self, table, namespace, text, start, stop):
        keys = self.keys_of(namespace, text)
        for at in range(start, stop):
            block = table[at]
            if self.refs[block] == 0 or self.keys[block] is not None:
                raise ValueError(f"block {block} is free, or published already")
            self.keys[block] = keys[at]
            self.found.setdefault(keys[at], []).append(block)
        return {}

    def release(self, table):
        head, tail = [], []
        for block in table[::-1] if self.policy["free_walk"] == "tail_first" else table:
            if self.refs[block] == 0:
                raise ValueError(f"block {block} is free")
            self.refs[block] -= 1
            if self.refs[block] == 0:
                first = self.keys[block] is None and self.policy["unhashed"] == "to_head"
                (head if first else tail).append(block)
        self.free = head + self.free + tail
        return {}

    def clear(self):
        if len(self.free) < self.usable:
            return {"done": False}
        for block in self.free:
            self.forget(block)
        return {"done": True}

    def see_pool(self):
        index = [{"key": key, "blocks": blocks} for key, blocks in self.found.items()]
        return {"free": self.free, "ref_counts": self.refs, "index": index}


VERBS = {
    "match": Pool.match,
    "acquire": Pool.acquire,
    "extend": Pool.extend,
    "publish": Pool.publish,
    "release": Pool.release,
    "clear": Pool.clear,
    "see_pool": Pool.see_pool,
}


def main():
    """Answer until there are no more questions."""
    pool = None
    for line in sys.stdin:
        request = json.loads(line)
        seq, verb = request.pop("seq"), request.pop("verb")
        try:
            if verb != "hello":
                answer = VERBS[verb](pool, **request)
            elif request["protocol"] != VERSION:
                answer = {"unsupported": f"protocol {request['protocol']}, only {VERSION}"}
            else:
                pool = Pool(request["config"], request["policy"])
                answer = {"protocol": VERSION, "name": "example pool in Python"}
                answer |= {"version": "1", "level": "pool"}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps({"seq": seq, **answer}), flush=True)


if __name__ == "__main__":
    main()
