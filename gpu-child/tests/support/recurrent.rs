//! Tensors of layers with a recurrent state.

use super::{Model, Types};
use worker_orcd_gpu::model::{
    DeltaNet, DeltaNetConfig, Linear, Mamba, Mixer, Recurrence, ShortConv, TensorView,
};
use worker_orcd_kernels::TensorType;
use worker_orcd_kernels::reference::delta_net::HeadOrder;

/// Tensors of a layer's delta net, after all others.
const DELTA_NET: usize = 9;
/// Tensors of a layer's short convolution, after all others.
const SHORT_CONV: usize = 3;
/// Tensors of a state-space layer, after all others.
const MAMBA: usize = 8;

impl Model {
    /// The mixer of a layer with a recurrent state.
    pub(super) fn recurrent(&self, layer: usize) -> Option<Mixer<TensorView<'_>, TensorView<'_>>> {
        let recurrent = self.config.recurrent.as_ref();
        let recurrent = recurrent.filter(|recurrent| recurrent.is_in(layer))?;
        Some(match recurrent.recurrence {
            Recurrence::DeltaNet(_) => Mixer::DeltaNet(self.delta_net(layer)),
            Recurrence::ShortConv(_) => Mixer::ShortConv(self.short_conv(layer)),
            Recurrence::Mamba(_) => Mixer::Mamba(self.mamba(layer)),
        })
    }

    /// Tensors of each layer's delta net, also of layers with attention.
    pub(super) fn push_delta_nets(&mut self, types: Types) {
        let Some(net) = self.config.delta_net().copied() else {
            return;
        };
        let n_embd = self.config.n_embd;
        for _ in 0..self.config.n_layers {
            for (ty, rows, cols, magnitude) in [
                (types[0], net.channels(), n_embd, 0.3),
                (types[1], net.v_width(), n_embd, 0.3),
                (types[2], net.v_heads, n_embd, 0.3),
                (types[3], net.v_heads, n_embd, 0.1),
                (types[6], n_embd, net.v_width(), 0.3),
                (TensorType::F32, net.channels(), net.kernel, 1.0),
                (TensorType::F32, 1, net.v_heads, 1.0),
                // Its negative absolute value counts: a decay.
                (TensorType::F32, 1, net.v_heads, 1.0),
                (TensorType::F32, 1, net.head_dim, 1.0),
            ] {
                self.push(ty, rows, cols, magnitude);
            }
        }
    }

    /// Tensors of each layer's short convolution, also of layers with attention.
    pub(super) fn push_short_convs(&mut self, types: Types) {
        let Some(conv) = self.config.short_conv().copied() else {
            return;
        };
        let n_embd = self.config.n_embd;
        for _ in 0..self.config.n_layers {
            for (ty, rows, cols, magnitude) in [
                (types[0], conv.projected_width(), n_embd, 0.3),
                (types[6], n_embd, conv.width, 0.3),
                (TensorType::F32, conv.width, conv.kernel, 1.0),
            ] {
                self.push(ty, rows, cols, magnitude);
            }
        }
    }

    /// Tensors of each state-space layer, also of layers with attention.
    pub(super) fn push_mamba(&mut self, types: Types) {
        let Some(mamba) = self.config.mamba().copied() else {
            return;
        };
        let n_embd = self.config.n_embd;
        for _ in 0..self.config.n_layers {
            for (ty, rows, cols, magnitude) in [
                (types[0], mamba.projected_width(), n_embd, 0.3),
                (types[6], n_embd, mamba.width(), 0.3),
                (TensorType::F32, mamba.channels(), mamba.kernel, 1.0),
                (TensorType::F32, 1, mamba.channels(), 0.5),
                (TensorType::F32, 1, mamba.heads, 1.0),
                // Its negative absolute value counts: a decay.
                (TensorType::F32, mamba.heads, 1, 0.5),
                (TensorType::F32, mamba.heads, 1, 1.0),
                (
                    TensorType::F32,
                    mamba.groups,
                    mamba.width() / mamba.groups,
                    1.0,
                ),
            ] {
                self.push(ty, rows, cols, magnitude);
            }
        }
    }

    fn mamba(&self, layer: usize) -> Mamba<TensorView<'_>, TensorView<'_>> {
        let first = self.mamba_layers() + layer * MAMBA;
        let view = |index: usize| self.tensors[first + index].view();
        let linear = |index: usize| self.tensors[first + index].linear();
        Mamba {
            input: linear(0),
            output: linear(1),
            conv: view(2),
            conv_bias: Some(view(3)),
            dt: view(4),
            decay: view(5),
            direct: view(6),
            norm: view(7),
        }
    }

    /// Index of the first tensor of a state-space layer. Biases of experts are behind them.
    fn mamba_layers(&self) -> usize {
        let experts = self.config.experts;
        let biases = experts.map_or(0, |it| usize::from(it.has_choice_bias));
        self.tensors.len() - self.config.n_layers * (MAMBA + biases)
    }

    fn short_conv(&self, layer: usize) -> ShortConv<TensorView<'_>, TensorView<'_>> {
        let experts = self.config.experts;
        // Biases of experts are behind them.
        let biases = experts.map_or(0, |it| usize::from(it.has_choice_bias));
        let all = self.config.n_layers * (SHORT_CONV + biases);
        let first = self.tensors.len() - all + layer * SHORT_CONV;
        let linear = |index: usize| self.tensors[first + index].linear();
        ShortConv {
            input: linear(0),
            output: linear(1),
            conv: self.tensors[first + 2].view(),
        }
    }

    /// Tensors of a recurrent layer, which are after all others.
    pub(super) fn of_recurrence(&self) -> usize {
        let recurrent = self.config.recurrent.as_ref();
        recurrent.map_or(0, |recurrent| match recurrent.recurrence {
            Recurrence::DeltaNet(_) => DELTA_NET,
            Recurrence::ShortConv(_) => SHORT_CONV,
            Recurrence::Mamba(_) => MAMBA,
        })
    }

    fn delta_net(&self, layer: usize) -> DeltaNet<TensorView<'_>, TensorView<'_>> {
        let all = self.config.n_layers * DELTA_NET;
        let first = self.tensors.len() - all + layer * DELTA_NET;
        let view = |index: usize| self.tensors[first + index].view();
        let linear = |index| Linear {
            weight: view(index),
            bias: None,
        };
        let order = self.config.delta_net().map(|it| it.order);
        let is_apart = order == Some(HeadOrder::Tiled);
        DeltaNet {
            qkv: linear(0),
            gate: linear(1),
            beta: linear(2),
            alpha: is_apart.then(|| linear(3)),
            output: linear(4),
            conv: view(5),
            dt: view(6),
            decay: view(7),
            norm: view(8),
        }
    }

    /// Makes the decays of delta nets or state spaces negative.
    pub(super) fn with_decays(mut self) -> Self {
        let (each, decays, first) = match self.config.mamba() {
            Some(_) => (MAMBA, 5, self.mamba_layers()),
            None => {
                let all = self.config.n_layers * DELTA_NET;
                (DELTA_NET, 7, self.tensors.len() - all)
            }
        };
        let layers = self.tensors[first..].chunks_exact_mut(each);
        for layer in layers.take(self.config.n_layers) {
            for value in layer[decays].data.as_chunks_mut::<4>().0 {
                *value = (-f32::from_ne_bytes(*value).abs()).to_ne_bytes();
            }
        }
        self
    }

    /// Joins strengths and decays of grouped heads in one tensor, where those of a unit are beside each other.
    pub(super) fn with_joint_strengths(mut self, net: DeltaNetConfig) -> Self {
        if net.order == HeadOrder::Tiled {
            return self;
        }
        let first = self.tensors.len() - self.config.n_layers * DELTA_NET;
        for layer in self.tensors[first..].chunks_exact_mut(DELTA_NET) {
            let (before, behind) = layer.split_at_mut(3);
            let (strengths, decays) = (&mut before[2], &behind[0]);
            assert_eq!(strengths.ty, decays.ty, "one tensor has one type");
            let unit = strengths.data.len() / net.k_heads;
            let units = strengths.data.chunks(unit).zip(decays.data.chunks(unit));
            strengths.data = units
                .flat_map(|(of, decays)| [of, decays].concat())
                .collect();
            strengths.rows += decays.rows;
        }
        self
    }
}
