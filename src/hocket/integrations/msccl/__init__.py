"""Programs written for msccl-tools, run unchanged.

``script`` runs one; while it does, ``msccl.language`` and its kin are modules made of the names in ``language``,
``collectives``, ``topologies`` and ``routines``. What the names mean was read from microsoft/msccl-tools (030a750);
docs/msccl-programs.md says where hocket is stricter.
"""
