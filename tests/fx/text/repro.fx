import torch
from torch import tensor, device
torch._inductor.config.max_autotune = False
isolate_fails_code_str = None
if "__compile_source__" in globals():
    import inspect as __after_aot_inspect
# torch version: 2.15.0

class GraphModule(torch.nn.Module):
    def forward(self, *args, **kwargs):
        pass
class Repro(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.score0 = lambda score, b, h, m, n, *args: score

    def forward(self, primals_1, primals_2, primals_3, tangents_1):
        convert_element_type = torch.ops.prims.convert_element_type.default(primals_1, torch.bfloat16);  primals_1 = None
        all_gather_into_tensor = torch.ops._c10d_functional.all_gather_into_tensor.default(convert_element_type, 4, '0');  convert_element_type = None
        wait_tensor = torch.ops._c10d_functional.wait_tensor.default(all_gather_into_tensor);  all_gather_into_tensor = None
        mm = torch.ops.aten.mm.default(tangents_1, wait_tensor);  tangents_1 = wait_tensor = None
        convert_element_type_1 = torch.ops.prims.convert_element_type.default(mm, torch.float32);  mm = None
        view = torch.ops.aten.view.default(convert_element_type_1, [primals_3, -1, 2]);  convert_element_type_1 = None
        view_as_complex = torch.ops.aten.view_as_complex.default(view);  view = None
        _conj = torch.ops.aten._conj.default(primals_2);  primals_2 = None
        mul = torch.ops.aten.mul.Tensor(view_as_complex, _conj);  view_as_complex = None
        view_as_real = torch.ops.aten.view_as_real.default(mul)
        sum_1 = torch.ops.aten.sum.dim_IntList(view_as_real, [0, 2]);  view_as_real = None
        all_reduce = torch.ops._c10d_functional.all_reduce.default(sum_1, 'sum', '1');  sum_1 = None
        wait_tensor_1 = torch.ops._c10d_functional.wait_tensor.default(all_reduce);  all_reduce = None
        return (mul, _conj, wait_tensor_1, None)

def load_args(reader):
    buf0 = reader.storage(None, 32, device=device(type='cuda', index=0))
    reader.tensor(buf0, (2, 4), is_leaf=True)  # primals_1
    buf1 = reader.storage('0123abc', 32, device=device(type='cuda', index=0), dtype_hint=torch.complex64)
    reader.tensor(buf1, (2, 2), (2, 1), dtype=torch.complex64, storage_offset=0, is_leaf=True)  # primals_2
    reader.symint(2)  # primals_3
    buf2 = reader.storage(None, 32, dtype_hint=torch.bfloat16)
    reader.tensor(buf2, (2, 8), dtype=torch.bfloat16, is_leaf=True)  # tangents_1
load_args._version = 0
mod = Repro()
if __name__ == '__main__':
    from torch._dynamo.repro.after_aot import run_repro
    from torch._dynamo.repro.after_aot import setup_fake_process_groups
    setup_fake_process_groups({'0': {'size': 4, 'rank': 3}, '1': {'size': 2, 'rank': 1}})
    with torch.no_grad():
        run_repro(mod, load_args, accuracy=False, command='run', save_dir=None, tracing_mode='symbolic', check_str=None)

def get_pg_config():
    """Sizes of
    process groups."""
    return {'0': {'size': 4, 'rank': 3}, '1': {'size': 2, 'rank': 1}}
